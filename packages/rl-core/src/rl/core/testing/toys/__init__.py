"""The simplest components that keep every promise."""
