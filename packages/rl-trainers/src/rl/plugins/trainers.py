"""What rl-trainers offers, as data."""
