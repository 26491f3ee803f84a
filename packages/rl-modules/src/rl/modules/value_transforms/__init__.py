"""Invertible transforms of value targets."""
