"""Linear recurrence and fused returns in C."""
