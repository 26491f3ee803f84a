"""What rl-modules offers, as data."""
