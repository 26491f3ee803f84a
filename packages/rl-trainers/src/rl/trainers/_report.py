"""Learning curves of runs. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from rl.core.errors import RLError
from rl.trainers._storage import write_atomic
from rl.trainers.loggers import read_metrics


def plot_learning_curve(metrics: Path, out: Path, title: str = "") -> None:
    """Draw returns over frames from a ``metrics.csv``.

    Args:
        metrics: The file; its columns ``rollout/return_mean`` and ``eval/return_mean`` are plotted.
        out: The PNG file to write.
        title: Title above the plot.

    Raises:
        CheckpointError: If the file cannot be read.
        RLError: If the plot cannot be written.
    """
    figure = learning_curve(metrics, title)
    _save(figure, figure.axes[0], out, f"rl plot {metrics.parent}")


def learning_curve(metrics: Path, title: str = "") -> Any:
    """Return the figure of returns over frames.

    Args:
        metrics: A ``metrics.csv``.
        title: Title above the plot.

    Raises:
        CheckpointError: If the file cannot be read.
    """
    columns = read_metrics(metrics)
    figure, axes = _axes(title)
    labels = {"rollout/return_mean": "training episodes (mean of the last 100)", "eval/return_mean": "evaluation"}
    for name, marker in (("rollout/return_mean", ""), ("eval/return_mean", "o")):
        points = [
            (x, y) for x, y in zip(columns.get("frames", []), columns.get(name, []), strict=False) if not math.isnan(y)
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker=marker, markersize=3, label=labels[name])
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    return figure


def plot_seeds(metrics: Sequence[Path], out: Path, title: str = "", reference: float | None = None) -> None:
    """Draw the median and the interquartile range of the evaluations of several runs.

    Args:
        metrics: A ``metrics.csv`` of each run; only evaluations after the same frames in all of them are plotted.
        out: The PNG file to write.
        title: Title above the plot.
        reference: Return at which a line is drawn.

    Raises:
        CheckpointError: If a file cannot be read.
        RLError: If the plot cannot be written.
    """
    runs = [read_metrics(path) for path in metrics]
    curves = [
        {x: y for x, y in zip(run["frames"], run["eval/return_mean"], strict=True) if not math.isnan(y)}
        for run in runs
        if run
    ]
    common = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    figure, axes = _axes(title)
    if common:
        values = np.array([[curve[x] for x in common] for curve in curves])
        low, middle, high = np.percentile(values, (25, 50, 75), axis=0)
        axes.plot(common, middle, marker="o", markersize=3, label=f"evaluation, median of {len(curves)}")
        axes.fill_between(common, low, high, alpha=0.25, label="interquartile range")
    if reference is not None:
        axes.axhline(reference, color="gray", linestyle="--", label=f"reference {reference:g}")
    _save(figure, axes, out, "repeat the command")


def _axes(title: str) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Shown(Figure):
        """A figure that a notebook shows, also where pyplot was not imported."""

        def _repr_png_(self) -> bytes:
            out = BytesIO()
            self.savefig(out, format="png", dpi=100)
            return out.getvalue()

    figure = Shown(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set(xlabel="frames", ylabel="return", title=title)
    axes.grid(visible=True, alpha=0.3)
    return figure, axes


def _save(figure: Any, axes: Any, out: Path, again: str) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    try:
        write_atomic(out, lambda path: figure.savefig(path, format="png", dpi=120))
    except OSError as error:
        raise RLError(f"{out} cannot be written: {error.strerror}; free some room, then: {again}") from error
