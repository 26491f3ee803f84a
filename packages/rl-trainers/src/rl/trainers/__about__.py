"""Version of the distribution."""

__version__ = "0.5.0"
