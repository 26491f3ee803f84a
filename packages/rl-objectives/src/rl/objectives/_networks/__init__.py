"""Calls of networks and actors on tensors."""
