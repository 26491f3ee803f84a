"""Command-line arguments."""
