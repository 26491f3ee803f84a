"""A training run: the loop, metrics, schedules and signals."""
