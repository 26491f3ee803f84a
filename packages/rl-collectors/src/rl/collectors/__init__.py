"""rl-collectors."""
