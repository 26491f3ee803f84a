"""What rl-envs offers, as data."""
