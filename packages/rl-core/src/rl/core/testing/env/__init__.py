"""Checks of environments, transforms and collectors."""
