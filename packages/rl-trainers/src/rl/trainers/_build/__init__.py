"""Environments, networks and optimizers from a config."""
