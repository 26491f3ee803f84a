"""Progress of a loop on a terminal, in a notebook, or as lines. Imports no torch."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO

from rl.core.errors import ArgumentError

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Display", "DisplayMode", "NotebookDisplay", "PlainDisplay", "QuietDisplay", "RichDisplay", "make_display"]

#: seconds between two panels of a notebook, which the browser draws and the file keeps
NOTEBOOK_INTERVAL = 0.5

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
    r"""Return the display for a stream.

    Args:
        mode: Mode: ``rich`` for a panel, ``plain`` for lines, ``none``, or ``auto``: a panel on a terminal and in a
            notebook, lines elsewhere.
        stream: Stream to write to; the standard output if None.

    Raises:
        ArgumentError: If there is no such mode.

    Example:
        >>> import io
        >>> out = io.StringIO()
        >>> display = make_display("plain", out)
        >>> display.start("my loop", total=1000, done=0)
        >>> display.update(500, {"return_mean": 21.5}, {"collect": 1.5, "update": 0.5})
        >>> display.note("halfway")
        >>> display.stop()
        >>> out.getvalue()
        'my loop\nhalfway\n'
    """
    to: TextIO = sys.stdout if stream is None else stream
    if mode == "auto" and stream is None and _in_notebook():
        return NotebookDisplay(to)
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

        table = Table(title=self._title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_row("progress", ProgressBar(total=self._pace.total, completed=frames, width=40))
        for row in _rows(self._pace, frames, values, times):
            table.add_row(*row)
        return table


class NotebookDisplay:
    """Panel in the output of a notebook's cell, which is redrawn in place.

    Args:
        stream: Standard output of the notebook, for notes.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._pace = _Pace(0, 0)
        self._title = ""
        self._last = 0.0
        self._handle: Any = None

    def start(self, title: str, total: int, done: int) -> None:
        from IPython.display import display  # pyright: ignore[reportMissingImports]  # of the notebook

        self._pace, self._title = _Pace(total, done), title
        self._handle = display(self._contents(done, {}, {}), raw=True, display_id=True)

    def update(self, frames: int, values: Mapping[str, float], times: Mapping[str, float]) -> None:
        now = time.monotonic()
        if now - self._last < NOTEBOOK_INTERVAL and frames < self._pace.total:
            return
        self._last = now
        self._handle.update(self._contents(frames, values, times), raw=True)

    def note(self, text: str) -> None:
        self._stream.write(text + "\n")

    def stop(self) -> None: ...

    def _contents(self, frames: int, values: Mapping[str, float], times: Mapping[str, float]) -> dict[str, str]:
        """Return the panel as HTML, and as lines for front ends that show none."""
        rows = _rows(self._pace, frames, values, times)
        cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in rows)
        bar = f'<progress max="{self._pace.total}" value="{frames}" style="width: 24em"></progress>'
        html = f"<div><b>{escape(self._title)}</b><br>{bar}<table>{cells}</table></div>"
        return {"text/html": html, "text/plain": "\n".join([self._title, *(f"{name} {text}" for name, text in rows)])}


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; IPython on a terminal has a shell, but no kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


def _rows(pace: _Pace, frames: int, values: Mapping[str, float], times: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return names and texts of a panel, below its progress bar."""
    fps, left = pace.read(frames)
    rows = [("frames", f"{frames} of {pace.total}"), ("frames/s", f"{fps:.0f}"), ("time left", _clock(left))]
    rows += [(_label(name), text) for name, text in _format_metrics(values)]
    return [*rows, ("time", _split(times))] if times else rows


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
