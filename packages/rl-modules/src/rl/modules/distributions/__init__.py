"""Distributions over actions, cheap to build once per call of a policy."""
