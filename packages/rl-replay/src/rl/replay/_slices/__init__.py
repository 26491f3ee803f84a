"""The trajectory table of a storage, and how slices are sampled from it."""
