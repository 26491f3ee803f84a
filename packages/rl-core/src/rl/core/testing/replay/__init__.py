"""Checks of storages, samplers and writers."""
