"""rl-replay."""
