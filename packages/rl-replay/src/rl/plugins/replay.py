"""What rl-replay offers, as data."""
