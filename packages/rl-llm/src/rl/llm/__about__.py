"""Version of rl-llm."""

__version__ = "0.1.0"
