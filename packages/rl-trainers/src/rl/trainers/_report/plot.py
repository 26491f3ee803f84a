"""The learning curve as a picture."""

from __future__ import annotations

import math
from pathlib import Path

from rl.core.errors import RLError
from rl.trainers._storage.files import write_atomic
from rl.trainers.loggers._loggers import read_metrics

__all__ = ["plot_learning_curve"]


def plot_learning_curve(metrics: Path, out: Path, title: str = "") -> None:
    """Draw returns over frames from a ``metrics.csv``.

    Args:
        metrics: the file; its columns ``rollout/return_mean`` and ``eval/return_mean`` are plotted.
        out: the PNG file to write.
        title: above the picture.

    Raises:
        CheckpointError: if the file cannot be read.
        RLError: if the picture cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = read_metrics(metrics)
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    labels = {"rollout/return_mean": "training episodes (mean of the last 100)", "eval/return_mean": "evaluation"}
    for name, marker in (("rollout/return_mean", ""), ("eval/return_mean", "o")):
        points = [
            (x, y) for x, y in zip(columns.get("frames", []), columns.get(name, []), strict=False) if not math.isnan(y)
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker=marker, markersize=3, label=labels[name])
    axes.set(xlabel="frames", ylabel="return", title=title)
    axes.grid(visible=True, alpha=0.3)
    if axes.lines:
        axes.legend()
    try:
        write_atomic(out, lambda path: figure.savefig(path, format="png", dpi=120))
    except OSError as error:
        remedy = f"free some room, then: rl plot {metrics.parent}"
        raise RLError(f"{out} cannot be written: {error.strerror}; {remedy}") from error
