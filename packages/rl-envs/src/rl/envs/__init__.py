"""rl-envs."""
