"""Triton kernels of both cells; `rl.recurrent_triton._launch` calls them."""
