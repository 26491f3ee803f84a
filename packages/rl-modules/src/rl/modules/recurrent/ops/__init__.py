"""Registered operators of recurrent layers."""
