"""Runs that differ in their seed, and their common result."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from rl.core.errors import RLError
from rl.trainers._config.config import RunConfig
from rl.trainers._config.recipe import Recipe
from rl.trainers._report.display import DisplayMode
from rl.trainers._report.plot import plot_seeds
from rl.trainers._storage.files import write_atomic
from rl.trainers._storage.folder import RunFolder, check_name, new_folder_of_runs, settings_of

__all__ = ["check_seeds", "train_seeds"]

#: entries of a summary of which that of several runs has median and range
FIGURES = ("best/return_mean", "last/return_mean", "time/seconds", "time/cpu_seconds")


def train_seeds(
    recipe: Recipe,
    config: RunConfig,
    seeds: Sequence[int],
    *,
    out: str | Path | None = None,
    display: DisplayMode = "auto",
    reference: float | None = None,
) -> dict[str, Any] | None:
    """Train once for each seed, in ``seed-0``, ``seed-1``, ... of one folder; runs there are continued, not repeated.

    Writes ``summary.json`` and ``learning_curve.png`` into the folder.

    Args:
        recipe: the recipe.
        config: its settings; the seed is replaced.
        seeds: of the runs.
        out: the folder, which may contain some of the runs; a new one under ``runs/`` if None.
        display: how progress is shown.
        reference: return at which the plot has a line.

    Returns:
        What ``summary.json`` contains; None if a run was interrupted.

    Raises:
        RLError: if there is a run with other settings in the folder.
    """
    check_seeds(recipe, config, seeds, out)
    folder = new_folder_of_runs(recipe.name, config) if out is None else Path(out)
    try:
        return _train_all(recipe, config, seeds, folder, display=display, reference=reference)
    finally:
        with suppress(OSError):
            folder.rmdir()  # of a failed start; a folder with anything in it stays


def _train_all(
    recipe: Recipe,
    config: RunConfig,
    seeds: Sequence[int],
    folder: Path,
    *,
    display: DisplayMode,
    reference: float | None,
) -> dict[str, Any] | None:
    for count, seed in enumerate(seeds, start=1):
        run = RunFolder(folder / f"seed-{seed}")
        if run.read_summary() is not None:
            continue
        if display != "none":
            sys.stdout.write(f"seed {seed} ({count} of {len(seeds)})\n")
        there = run.config.is_file()
        where: dict[str, Any] = {"resume": run.path} if there else {"out": run.path}
        if recipe.load_train()(replace(config, seed=seed), display=display, **where).interrupted:
            if display != "none":
                sys.stdout.write(f"the same command with --out {folder} continues all seeds\n")
            return None
    runs = [RunFolder(folder / f"seed-{seed}") for seed in seeds]
    summary = _summary(recipe, config, seeds, [run.read_summary() or {} for run in runs])
    write_atomic(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    if all(run.metrics.is_file() for run in runs):
        title = f"{recipe.name} on {config.env}, {_count(seeds)}"
        plot_seeds([run.metrics for run in runs], folder / "learning_curve.png", title, reference)
    if display != "none":
        best = summary["best/return_mean"]
        found = f"return {best['median']:.1f}"
        if len(seeds) > 1:
            found = f"median {found} (from {best['min']:.1f} to {best['max']:.1f})"
        sys.stdout.write(f"{_count(seeds)}: best policy, {found}\nfolder: {folder}\n")
    return summary


def check_seeds(recipe: Recipe, config: RunConfig, seeds: Sequence[int], out: str | Path | None) -> None:
    """Raise if a run in the folder `out` has other settings than it would get.

    Raises:
        RLError: if so, or if `out` is a run folder itself.
        CheckpointError: if its config cannot be read.
    """
    if out is None:
        return
    check_name(out)
    if RunFolder(out).config.is_file():
        raise RLError(f"{out} is the folder of one run; name another folder with --out")
    for seed in seeds:
        run = RunFolder(Path(out) / f"seed-{seed}")
        if not run.config.is_file():
            continue
        usual = settings_of(recipe.reference, recipe.config())  # of a setting that an older version did not have
        before, now = usual | run.read_config(), settings_of(recipe.reference, replace(config, seed=seed))
        differing = [name for name, value in now.items() if before[name] != value]
        changed = [f"{name}={before[name]!r}, not {now[name]!r}" for name in differing]
        if changed:
            raise RLError(
                f"{run.path} was trained with {'; '.join(changed)}; name another folder with --out, or delete this run"
            )


def _summary(recipe: Recipe, config: RunConfig, seeds: Sequence[int], runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    spread: dict[str, Any] = {}
    for name in FIGURES:
        values = [run[name] for run in runs]
        spread[name] = {"median": median(values), "min": min(values), "max": max(values), "values": values}
    return {"recipe": recipe.name, "env": config.env, "seeds": [*seeds], "frames": runs[0]["frames"], **spread}


def _count(seeds: Sequence[int]) -> str:
    return "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
