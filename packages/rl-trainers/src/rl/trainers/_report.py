"""What a run shows: progress and curves. Imports no torch."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO

import numpy as np

from rl.core.errors import ArgumentError, RLError
from rl.trainers._storage import write_atomic
from rl.trainers.loggers import read_metrics

if TYPE_CHECKING:
    from rich.table import Table


DisplayMode = Literal["auto", "rich", "plain", "none"]


class Display(Protocol):
    """Progress of a run on the screen."""

    def start(self, title: str, total: int, done: int) -> None:
        """Start a run of `total` frames, or resume it after `done` frames."""
        ...

    def update(self, frames: int, values: Mapping[str, float], times: Mapping[str, float]) -> None:
        """Show the latest metrics, and the seconds of each phase, after an iteration."""
        ...

    def note(self, text: str) -> None:
        """Print a line that stays."""
        ...

    def stop(self) -> None:
        """End the display. May be called twice."""
        ...


def make_display(mode: DisplayMode = "auto", stream: TextIO | None = None) -> Display:
    """Return the display for a stream.

    Args:
        mode: Mode: ``rich``, ``plain``, ``none``, or ``auto`` for rich on a terminal and plain elsewhere.
        stream: Stream to write to; the standard output if None.

    Raises:
        ArgumentError: If there is no such mode.

    Example:
        >>> type(make_display("none")).__name__
        'QuietDisplay'
    """
    to: TextIO = sys.stdout if stream is None else stream
    if mode == "auto":
        mode = "rich" if to.isatty() else "plain"
    if mode == "rich":
        return RichDisplay(to)
    if mode == "plain":
        return PlainDisplay(to)
    if mode == "none":
        return QuietDisplay()
    raise ArgumentError(f"display must be one of auto, rich, plain, none, got {mode!r}")


class QuietDisplay:
    """Display that prints nothing."""

    def start(self, title: str, total: int, done: int) -> None: ...
    def update(self, frames: int, values: Mapping[str, float], times: Mapping[str, float]) -> None: ...
    def note(self, text: str) -> None: ...
    def stop(self) -> None: ...


class _Pace:
    """Frames per second and time left, since the start of this process's part of the run."""

    def __init__(self, total: int, done: int) -> None:
        self.total, self._done = total, done
        self._start = time.perf_counter()

    def read(self, frames: int) -> tuple[float, float]:
        """Frames per second, seconds left."""
        elapsed = max(time.perf_counter() - self._start, 1e-9)
        fps = (frames - self._done) / elapsed
        return fps, max(self.total - frames, 0) / fps if fps > 0 else math.inf


class PlainDisplay:
    """One line every few seconds, for logs and pipes.

    Args:
        stream: Stream to write to.
        interval: Seconds between two lines.
    """

    def __init__(self, stream: TextIO, interval: float = 5.0) -> None:
        self._stream, self._interval = stream, interval
        self._pace = _Pace(0, 0)
        self._next = 0.0

    def start(self, title: str, total: int, done: int) -> None:
        self._pace = _Pace(total, done)
        self._next = time.monotonic() + self._interval
        self.note(title)

    def update(self, frames: int, values: Mapping[str, float], times: Mapping[str, float]) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._interval
        fps, left = self._pace.read(frames)
        parts = [f"{frames}/{self._pace.total} frames", f"{fps:.0f} frames/s"]
        parts += [
            f"{_label(name)} {text}" for name, text in _format_metrics(values) if "return" in name or "loss" in name
        ]
        parts += [_split(times), f"{_clock(left)} left"]
        self.note(" | ".join(part for part in parts if part))

    def note(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def stop(self) -> None: ...


class RichDisplay:
    """Panel that is redrawn in place: progress, metrics, share of time of each phase.

    Args:
        stream: The terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream)
        self._live = Live(console=self._console, refresh_per_second=8, transient=False)
        self._pace = _Pace(0, 0)
        self._title = ""
        self._last = 0.0

    def start(self, title: str, total: int, done: int) -> None:
        self._pace, self._title = _Pace(total, done), title
        from rich.spinner import Spinner

        self._live.start()
        table = self._table(done, {}, {})
        table.add_row("now", Spinner("dots", "first batch"))  # moves until there are metrics
        self._live.update(table)

    def update(self, frames: int, values: Mapping[str, float], times: Mapping[str, float]) -> None:
        now = time.monotonic()
        if now - self._last < 0.1 and frames < self._pace.total:
            return
        self._last = now
        self._live.update(self._table(frames, values, times))

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        self._live.stop()

    def _table(self, frames: int, values: Mapping[str, float], times: Mapping[str, float]) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        fps, left = self._pace.read(frames)
        table = Table(title=self._title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        rows: list[tuple[str, Any]] = [
            ("progress", ProgressBar(total=self._pace.total, completed=frames, width=40)),
            ("frames", f"{frames} of {self._pace.total}"),
            ("frames/s", f"{fps:.0f}"),
            ("time left", _clock(left)),
            *((_label(name), text) for name, text in _format_metrics(values)),
        ]
        if times:
            rows.append(("time", _split(times)))
        for name, cell in rows:
            table.add_row(name, cell)
        return table


def _label(name: str) -> str:
    """``train/loss_actor`` as "loss actor", ``eval/return_mean`` as "eval return mean"."""
    return name.removeprefix("train/").replace("/", " ").replace("_", " ")


def _format_metrics(values: Mapping[str, float]) -> list[tuple[str, str]]:
    return [(name, f"{value:.4g}") for name, value in values.items() if not math.isnan(value)]


def _split(times: Mapping[str, float]) -> str:
    total = sum(times.values())
    if total <= 0:
        return ""
    return ", ".join(f"{name} {100 * seconds / total:.0f} %" for name, seconds in times.items())


def _clock(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


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

    figure = Figure(figsize=(7, 4), layout="constrained")
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
