"""What rl-collectors offers, as data."""
