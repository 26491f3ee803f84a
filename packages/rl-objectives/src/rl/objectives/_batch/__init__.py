"""The mask of valid steps and the time dimension in a batch."""
