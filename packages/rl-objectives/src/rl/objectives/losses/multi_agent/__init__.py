"""Losses of groups of agents."""
