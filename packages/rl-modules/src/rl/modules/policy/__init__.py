"""Actors and value operators."""
