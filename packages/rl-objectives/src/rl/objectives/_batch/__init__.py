"""The mask of valid steps and the order of time in a batch."""
