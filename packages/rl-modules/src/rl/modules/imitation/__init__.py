"""Policies that imitate data: decision transformers, diffusion, action chunks."""
