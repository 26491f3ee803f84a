"""Evaluation of policies, and loading them from a run folder."""
