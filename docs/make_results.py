"""Make tables and curves of the published results from `results.json` of rl-trainers and the tables below docs/results.

Needs no package of ours.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "packages/rl-trainers/src/rl/trainers/presets/results.json"

KINDS = {
    "Classic control, discrete actions": r"CartPole|Acrobot|MountainCar-v",
    "Classic control, continuous actions": r"Pendulum-v|MountainCarContinuous",
    "Box2D": r"LunarLander|BipedalWalker|CarRacing",
    "MuJoCo": r"HalfCheetah|Hopper-v|Walker2d|Ant-v|Humanoid|Swimmer|Reacher|dm_control",
    "Games": r"MinAtar|ALE/|atari",
    "Several agents": r"vmas/|pettingzoo/",
    "Pendulum, from data": r"minari:pendulum|Pendulum",
    "Hopper, from data": r"Hopper",
    "Language models": r"sort|countdown",
    "Other tasks": "",
}
"""Kind of task and the environments of it; the first that matches."""

GRAY = "#808a88"  # of axes and words, readable on light and dark pages
COLORS = [
    "#0b8f7a",
    "#e8863a",
    "#4a6fd4",
    "#c0458f",
    "#8a9a1f",
    "#8a63c9",
    "#c44536",
    "#3aa6c9",
]


def make(folder: Path) -> None:
    """Write `results.md` and `curves/TASK.svg` into a folder, for the cases whose metrics lie there."""
    every = json.loads(RESULTS.read_text(encoding="utf-8"))["cases"]
    cases = [case for case in every if (folder / f"{case['name']}.csv.gz").is_file()]
    (folder / "curves").mkdir(exist_ok=True)
    lines: list[str] = []
    for kind in KINDS:
        tasks = by_task([case for case in cases if kind_of(case) == kind])
        if tasks:
            lines += [
                f"## {kind}",
                "",
                ":::{container} numbers",
                "",
                *table(tasks),
                "",
                ":::",
                "",
            ]
            lines += [":::{container} curves", ""]
            for task, ours in tasks.items():
                picture = folder / "curves" / f"{slug(task)}.svg"
                draw(task, ours, folder, picture)
                names = ", ".join(case["recipe"] for case in ours)
                lines.append(f"![Returns of {names} on {task}](curves/{picture.name})")
            lines += ["", ":::", ""]
    chosen = [
        case
        for case in cases
        if case["env"] == "CartPole-v1" and case["recipe"].endswith("ppo")
    ]
    if chosen:
        draw("CartPole-v1", chosen, folder, folder / "curves" / "landing.svg")
    (folder / "results.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def kind_of(case: dict[str, Any]) -> str:
    """The heading under which a case stands."""
    return next(
        kind for kind, pattern in KINDS.items() if re.search(pattern, task_of(case))
    )


def task_of(case: dict[str, Any]) -> str:
    """The environment, or the data set where a policy is learned from one."""
    name = str(case["name"]).removeprefix(f"{case['recipe']}-")
    return (
        name
        if re.search(r"-(medium|medium-replay|expert)$", name)
        else str(case["env"])
    )


def by_task(cases: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Cases of the same task together, as they share a plot."""
    found: dict[str, list[dict[str, Any]]] = {}
    for case in cases:
        found.setdefault(task_of(case), []).append(case)
    return found


def algorithm_of(case: dict[str, Any]) -> str:
    """The name of the algorithm, also of one that Stable-Baselines3 trained, whose curve has the same color."""
    return str(case["recipe"]).removeprefix("sb3-")


def slug(task: str) -> str:
    """The name of a task in a file name."""
    return re.sub(r"[^\w.-]+", "-", task.partition(":")[2] or task)


def table(tasks: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return a Markdown table with a row for each case, the name of a task in its first row only."""
    lines = [
        "| task | algorithm | frames | seeds | last policy | best policy | reference | CPU seconds |",
        "|---|---|---:|---:|---:|---:|---|---:|",
    ]
    for task, cases in tasks.items():
        for number, case in enumerate(cases):
            reference = "" if case["reference"] is None else f"{case['reference']:g}"
            cells = [
                f"`{task.rpartition(':')[2]}`" if number == 0 else "",
                f"`{case['recipe']}`",
                f"{case['frames']:,}",
                str(len(case["seeds"])),
                spread(case["last/return_mean"]["values"]),
                spread(case["best/return_mean"]["values"]),
                reference + (f" ({case['source']})" if case["source"] else ""),
                f"{case['time/cpu_seconds']['median']:.0f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def spread(values: list[float]) -> str:
    """Mean and standard deviation over the seeds; of one seed its return alone, which has no spread."""
    mean = fmean(values)
    digits = 0 if abs(mean) >= 100 else 1 if abs(mean) >= 1 else 2
    text = f"{mean:.{digits}f}"
    return text if len(values) == 1 else f"{text} ± {stdev(values):.{digits}f}"


def read_evaluations(path: Path) -> list[dict[int, float]]:
    """Return the return of each evaluation by its frames, for each seed."""
    curves: dict[str, dict[int, float]] = {}
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            value = float(row["eval/return_mean"] or "nan")
            if not math.isnan(value):
                curves.setdefault(row["seed"], {})[int(row["frames"])] = value
    return [*curves.values()]


def draw(task: str, cases: list[dict[str, Any]], folder: Path, path: Path) -> None:
    """Draw the median of each algorithm, and the interquartile range where there are several seeds."""
    sources = [folder / f"{case['name']}.csv.gz" for case in cases]
    newest = max(one.stat().st_mtime for one in [*sources, Path(__file__)])
    if path.is_file() and path.stat().st_mtime > newest:
        return
    rcParams.update(
        {"svg.hashsalt": "rl", "svg.fonttype": "none", "font.family": "sans-serif"}
    )
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    axes.set_title(task.rpartition(":")[2], color=GRAY)
    axes.set_xlabel("frames", color=GRAY)
    lengths = [case["frames"] for case in cases]
    if max(lengths) > 3 * min(
        lengths
    ):  # some algorithms take a hundred times the frames of others
        axes.set_xscale("log")
    axes.set_ylabel("return", color=GRAY)
    axes.tick_params(which="both", colors=GRAY)
    axes.grid(visible=True, alpha=0.25, color=GRAY)
    for side, spine in axes.spines.items():
        spine.set_color(GRAY)
        spine.set_visible(side in ("left", "bottom"))
    axes.set_facecolor("none")
    colors = dict(
        zip(dict.fromkeys(map(algorithm_of, cases)), COLORS * 2, strict=False)
    )
    for case, source in zip(cases, sources, strict=True):
        curves = read_evaluations(source)
        frames = sorted(set.intersection(*(set(curve) for curve in curves)))
        values = np.array([[curve[x] for x in frames] for curve in curves])
        low, middle, high = np.percentile(values, (25, 50, 75), axis=0)
        label = f"{case['recipe']}, {len(curves)} seed{'s' if len(curves) > 1 else ''}"
        color, style = (
            colors[algorithm_of(case)],
            "--" if case["recipe"].startswith("sb3-") else "-",
        )
        axes.plot(frames, middle, label=label, color=color, linestyle=style)
        if len(curves) > 1:
            axes.fill_between(
                frames,
                low,
                high,
                alpha=0.15 if style == "--" else 0.25,
                color=color,
                linewidth=0,
            )
    references = {case["reference"] for case in cases} - {None}
    if len(references) == 1:
        value = references.pop()
        axes.axhline(value, color=GRAY, linestyle=":", label=f"reference {value:g}")
    axes.legend(labelcolor=GRAY, frameon=False, fontsize="small")
    figure.savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    for folder in ("results", "results/offline"):
        make(DOCS / folder)
