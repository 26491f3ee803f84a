"""Losses that learn from a fixed data set."""
