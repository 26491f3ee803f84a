"""Inner loops of a collector, and the policies that run in them."""
