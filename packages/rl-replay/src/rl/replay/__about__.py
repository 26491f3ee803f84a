"""Version of the distribution."""

__version__ = "0.4.0"
