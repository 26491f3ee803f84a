"""A training run: folder, checkpoints, metrics, signals."""
