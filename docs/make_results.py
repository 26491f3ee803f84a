"""Make table and curves of the published results from `results.json` of rl-trainers and the tables below docs/results.

Needs no package of ours.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "packages/rl-trainers/src/rl/trainers/presets/results.json"


def make(folder: Path) -> None:
    """Write `results.md` and `curves/CASE.png` into a folder, for the cases whose metrics lie there."""
    every = json.loads(RESULTS.read_text(encoding="utf-8"))["cases"]
    cases = [case for case in every if (folder / f"{case['name']}.csv.gz").is_file()]
    (folder / "results.md").write_text(table(cases), encoding="utf-8")
    (folder / "curves").mkdir(exist_ok=True)
    for case in cases:
        source, picture = (
            folder / f"{case['name']}.csv.gz",
            folder / "curves" / f"{case['name']}.png",
        )
        if not picture.is_file() or picture.stat().st_mtime < source.stat().st_mtime:
            draw(case, read_evaluations(source), picture)


def table(cases: list[dict[str, Any]]) -> str:
    """Return a Markdown table with a row for each case: medians over the seeds; of several with the range."""
    lines = [
        "| case | frames | seeds | best policy | last policy | reference | CPU seconds | curve |",
        "|---|---:|---:|---:|---:|---|---:|---|",
    ]
    for case in cases:
        reference = "" if case["reference"] is None else f"{case['reference']:g}"
        source = f" ({case['source']})" if case["source"] else ""
        cells = [
            case["name"],
            f"{case['frames']:,}",
            str(len(case["seeds"])),
            _spread(case["best/return_mean"]),
            _spread(case["last/return_mean"]),
            reference + source,
            f"{case['time/cpu_seconds']['median']:.0f}",
            f"[curve](curves/{case['name']}.png)",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _spread(figure: dict[str, Any]) -> str:
    middle = f"{figure['median']:.1f}"
    return (
        middle
        if len(figure["values"]) == 1
        else f"{middle} [{figure['min']:.1f}, {figure['max']:.1f}]"
    )


def read_evaluations(path: Path) -> list[dict[int, float]]:
    """Return the return of each evaluation by its frames, for each seed."""
    curves: dict[str, dict[int, float]] = {}
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            value = float(row["eval/return_mean"] or "nan")
            if not math.isnan(value):
                curves.setdefault(row["seed"], {})[int(row["frames"])] = value
    return [*curves.values()]


def draw(case: dict[str, Any], curves: list[dict[int, float]], path: Path) -> None:
    """Draw median and interquartile range of the evaluations that all seeds have."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    count = "1 seed" if len(curves) == 1 else f"{len(curves)} seeds"
    axes.set(
        xlabel="frames",
        ylabel="return",
        title=f"{case['recipe']} on {case['env']}, {count}",
    )
    axes.grid(visible=True, alpha=0.3)
    frames = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = np.array([[curve[x] for x in frames] for curve in curves])
    low, middle, high = np.percentile(values, (25, 50, 75), axis=0)
    axes.plot(
        frames,
        middle,
        marker="o",
        markersize=3,
        label=f"evaluation, median of {len(curves)}",
    )
    axes.fill_between(frames, low, high, alpha=0.25, label="interquartile range")
    if case["reference"] is not None:
        axes.axhline(
            case["reference"],
            color="gray",
            linestyle="--",
            label=f"reference {case['reference']:g}",
        )
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    for folder in ("results", "results/offline"):
        make(DOCS / folder)
