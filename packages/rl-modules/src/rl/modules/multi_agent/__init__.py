"""Networks of several agents, and mixers of their values."""
