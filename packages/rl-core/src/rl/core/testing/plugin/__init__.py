"""Checks of declarations and of whole plugins."""
