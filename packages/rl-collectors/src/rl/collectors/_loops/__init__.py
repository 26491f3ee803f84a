"""Inner loops of a collector: which one fits an environment and a policy, and what runs inside it."""
