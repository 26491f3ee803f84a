"""rl-trainers."""
