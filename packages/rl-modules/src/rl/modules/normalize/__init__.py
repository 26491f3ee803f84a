"""Normalization of value targets."""
