"""rl-objectives."""
