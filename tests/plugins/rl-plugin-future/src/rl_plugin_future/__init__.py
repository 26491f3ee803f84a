"""A plugin for an rl-core that does not exist yet."""
