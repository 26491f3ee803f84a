"""Checks of losses and value estimators."""
