"""rl-modules."""
