"""Runs side by side: curves with the interquartile mean over seeds, and which algorithm is better."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from rl.core.errors import ArgumentError, CheckpointError, RLError
from rl.trainers._runs import Record, check_name, differences
from rl.trainers._storage import write_atomic
from rl.trainers.loggers import read_metrics
from rl.trainers.statistics import bootstrap_interval, interquartile_mean, probability_of_improvement

#: points at which curves are interpolated that have no points in common
POINTS = 101

#: letters of a label that a panel has room for
LABEL = 40

#: draws of whole curves
RESAMPLES = 2_000

X_AXES = {"frames": "frames", "time": "time/seconds"}
"""Column of ``metrics.csv`` by the name of the horizontal axis."""

ENDINGS = (".png", ".svg", ".html")


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed.

    Args:
        label: What sets it apart from the other groups.
        records: Its runs.
    """

    label: str
    records: Sequence[Record]

    @property
    def env(self) -> str:
        return str(self.records[0].settings.get("env"))


def group_by_settings(records: Sequence[Record]) -> list[Group]:
    """Return groups of runs whose settings are the same but for the seed.

    Their label is the recipe, with what sets them apart from others of this recipe and environment.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(repr(sorted(_compared(record).items(), key=str)), []).append(record)
    found: list[Group] = []
    for group in groups.values():
        mine = _compared(group[0])
        relatives = [_compared(one[0]) for one in groups.values()]
        relatives = [one for one in relatives if all(one.get(name) == mine.get(name) for name in ("recipe", "env"))]
        differ = [name for name in mine if any(one.get(name) != mine[name] for one in relatives)]
        label = " ".join([str(mine["recipe"]), *(f"{name}={mine[name]}" for name in differ)])
        found.append(Group(label, group))
    return found


#: settings that have no part in the result
_ASIDE = frozenset(
    {
        "seed",
        "device",
        "threads",
        "loggers",
        "metric_names",
        "log_every",
        "checkpoint_every",
        "keep_checkpoints",
        "video_every",
    }
)


def _compared(record: Record) -> dict[str, Any]:
    return {name: value for name, value in record.settings.items() if name not in _ASIDE}


@dataclass(frozen=True)
class Curve:
    """Interquartile mean of the runs of a group, ``[points]``, with its bootstrap interval."""

    group: Group
    x: Any
    middle: Any
    low: Any
    high: Any


def curve_of(group: Group, metric: str = "eval/return_mean", x: str = "frames") -> Curve:
    """Return the curve of a group.

    Args:
        group: Runs.
        metric: Column of ``metrics.csv``.
        x: Name in `X_AXES`. Curves of runs that have other values of it are interpolated where all of them are.

    Raises:
        CheckpointError: If a run has no such column, or no values in it yet.
    """
    found: list[tuple[Any, Any]] = []
    for record in group.records:
        columns = read_metrics(record.folder.metrics)
        missing = [name for name in (metric, X_AXES[x]) if name not in columns]
        if missing:
            known = ", ".join(name for name in columns if name != "frames")
            raise CheckpointError(f"{record.folder.metrics} has no column {missing[0]!r}; it has {known or 'no rows'}")
        xs, ys = np.array(columns[X_AXES[x]]), np.array(columns[metric])
        there = ~np.isnan(xs) & ~np.isnan(ys)
        if not there.any():
            raise CheckpointError(f"{record.folder.path} has no values of {metric!r} yet; leave it out")
        found.append((xs[there], ys[there]))
    grid = found[0][0]
    if any(not np.array_equal(grid, xs) for xs, _ in found):
        begin, end = max(xs[0] for xs, _ in found), min(xs[-1] for xs, _ in found)
        if begin > end:
            raise CheckpointError(f"the runs of {group.label} have no {x} in common; draw them one by one")
        grid = np.linspace(begin, end, POINTS if begin < end else 1)
    values = np.stack([np.interp(grid, xs, ys) for xs, ys in found])
    low, high = bootstrap_interval(values, resamples=RESAMPLES)
    return Curve(group, grid, interquartile_mean(values), low, high)


def draw(curves: Sequence[Curve], out: Path, metric: str, x: str) -> None:
    """Draw curves, with a panel for each environment, as ``.png``, ``.svg`` or ``.html``.

    Raises:
        RLError: If the plot cannot be written.
    """
    from matplotlib import rc_context

    figure = _figure(curves, metric, x)

    def write(path: Path) -> None:
        if out.suffix == ".png":
            figure.savefig(path, format="png", dpi=120)
            return
        with rc_context({"svg.hashsalt": "rl", "svg.fonttype": "none"}):
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None})
        page = text.getvalue() if out.suffix == ".svg" else _page(text.getvalue(), curves, metric, x)
        path.write_text(page, encoding="utf-8")

    try:
        write_atomic(out, write)
    except OSError as error:
        raise RLError(f"{out} cannot be written: {error.strerror}; name another file with --out") from error


def _figure(curves: Sequence[Curve], metric: str, x: str) -> Any:
    """Return the figure of curves, with a panel for each environment."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    envs = list(dict.fromkeys(curve.group.env for curve in curves))
    columns = min(len(envs), 3)
    rows = math.ceil(len(envs) / columns)
    width = 3 + 4 * columns
    texts = [_legend_text(curve, 12 * width) for curve in curves]
    below = max(map(len, texts)) > LABEL  # else the legend would cover the curves
    lines = sum(text.count("\n") + 1 for text in dict.fromkeys(texts)) if below else 0
    figure = Figure(figsize=(width, 0.5 + 3.5 * rows + 0.2 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    panels = np.ravel(figure.subplots(rows, columns, squeeze=False))
    for panel in panels[len(envs) :]:
        panel.set_visible(False)
    labels = list(dict.fromkeys(curve.group.label for curve in curves))
    for curve, text in zip(curves, texts, strict=True):
        axes, color = panels[envs.index(curve.group.env)], f"C{labels.index(curve.group.label) % 10}"
        axes.plot(curve.x, curve.middle, color=color, marker="o" if len(curve.x) < 30 else "", ms=3, label=text)
        if len(curve.group.records) > 1:
            axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.2, linewidth=0)
    for env, axes in zip(envs, panels, strict=False):
        axes.set(xlabel="frames" if x == "frames" else "seconds", ylabel=metric, title=env)
        if x == "frames":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 20k has room where 20000 has not
        axes.grid(visible=True, alpha=0.3)
        if not below:
            axes.legend(fontsize="small")
    if below:
        handles = {line.get_label(): line for axes in panels for line in axes.get_lines()}
        figure.legend(handles=[*handles.values()], loc="outside lower left", fontsize="small")
    return figure


def _legend_text(curve: Curve, width: int) -> str:
    """Return the label of a curve, in lines of at most `width` letters."""
    count = len(curve.group.records)
    return fill(f"{curve.group.label} ({count} {'run' if count == 1 else 'runs'})", width)


def check_ending(out: Path) -> None:
    """Raise unless a picture can have this name.

    Raises:
        ArgumentError: If not.
    """
    if out.suffix not in ENDINGS:
        raise ArgumentError(f"--out writes {', '.join(ENDINGS)}, got {out.name!r}; name a file like curves.png")


def _page(svg: str, curves: Sequence[Curve], metric: str, x: str) -> str:
    """Return a web page with the picture and the last values of the curves."""
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in _row(curve)) + "</tr>" for curve in curves
    )
    heads = "".join(
        f"<th>{html.escape(name)}</th>"
        for name in (
            "environment",
            "algorithm",
            "runs",
            "frames" if x == "frames" else "seconds",
            metric,
            "95 % interval",
        )
    )
    style = (
        "body{font:15px sans-serif;margin:2em}td,th{padding:.2em 1em;text-align:left}svg{max-width:100%;height:auto}"
    )
    return (
        f"<!doctype html><meta charset='utf-8'><title>{html.escape(metric)}</title><style>{style}</style>"
        f"{svg[svg.index('<svg') :]}<table><tr>{heads}</tr>{rows}</table>\n"
        "<p>Interquartile mean over the runs, with its bootstrap interval.</p>\n"
    )


def _row(curve: Curve) -> list[str]:
    group = curve.group
    last = [f"{part[-1]:.4g}" for part in (curve.middle, curve.low, curve.high)]
    return [group.env, group.label, str(len(group.records)), f"{curve.x[-1]:g}", last[0], f"{last[1]} to {last[2]}"]


def as_values(curve: Curve, x: str) -> dict[str, Any]:
    """Return a curve as plain values."""
    return {
        "label": curve.group.label,
        "env": curve.group.env,
        "runs": [str(record.folder.path) for record in curve.group.records],
        x: curve.x.tolist(),
        "iqm": curve.middle.tolist(),
        "low": curve.low.tolist(),
        "high": curve.high.tolist(),
    }


def compare(names: Sequence[str], groups: Sequence[Sequence[Record]], metric: str) -> dict[str, Any]:
    """Compare two groups of runs by their results.

    Args:
        names: How they are named.
        groups: Their runs.
        metric: Entry of ``summary.json``.

    Returns:
        ``metric``, ``first`` and ``second`` with ``runs``, ``scores``, ``iqm`` and ``interval``, ``probability`` that a
        run of the first has more, with ``probability_interval``, and the ``settings`` of both that differ.

    Raises:
        CheckpointError: If no run of a group is complete.
        ArgumentError: If they are of different environments, or have no such entry.
    """
    envs = list(dict.fromkeys(str(record.settings.get("env")) for group in groups for record in group))
    if len(envs) > 1:
        raise ArgumentError(f"returns of {' and '.join(envs)} cannot be compared: name runs of one environment")
    sides: list[dict[str, Any]] = []
    for name, group in zip(names, groups, strict=True):
        complete = [record for record in group if record.summary]
        if not complete:
            raise CheckpointError(f"no run of {name} is complete; continue one with rl train --resume")
        check_name(complete, metric)
        values = [record.value(metric) for record in complete]
        if not all(isinstance(value, int | float) for value in values):
            raise ArgumentError(f"--metric {metric} is not a number in {complete[0].folder.summary}")
        sides.append(
            {
                "name": name,
                "recipe": complete[0].settings.get("recipe"),
                "runs": [str(record.folder.path) for record in complete],
                "incomplete": len(group) - len(complete),
                "scores": [float(value) for value in values],
                "iqm": float(interquartile_mean(values)),
                "interval": bootstrap_interval(values).tolist(),
            }
        )
    scores = [side["scores"] for side in sides]
    first, second = (_compared(group[0]) for group in groups)
    differ = differences(first, second).items()
    settings: Mapping[str, Any] = {name: values for name, values in differ if name in first and name in second}
    return {
        "env": envs[0],
        "metric": metric,
        "first": sides[0],
        "second": sides[1],
        "probability": float(probability_of_improvement(*scores)),
        "probability_interval": bootstrap_interval(*scores, statistic=probability_of_improvement).tolist(),
        "settings": settings,
    }
