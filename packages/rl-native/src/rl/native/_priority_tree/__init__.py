"""Priority tree in C."""
