"""Progress, learning curves and videos."""
