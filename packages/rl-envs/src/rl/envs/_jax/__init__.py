"""What the back ends on JAX have in common."""
