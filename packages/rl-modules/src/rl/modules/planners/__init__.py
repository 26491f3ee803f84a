"""Planners: model predictive control in a model of the environment."""
