"""Checks of loggers and recipes."""
