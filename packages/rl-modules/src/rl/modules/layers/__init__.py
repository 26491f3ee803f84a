"""Layers: noisy linear, batch renormalization, consistent dropout."""
