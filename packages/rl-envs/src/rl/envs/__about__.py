"""Version of the distribution."""

__version__ = "0.3.0"
