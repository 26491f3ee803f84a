"""What rl-objectives offers, as data."""
