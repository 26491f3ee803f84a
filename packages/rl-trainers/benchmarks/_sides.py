"""What the comparisons of whole trainings share: repetitions in turn, CPU time, ratios."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch

#: trains with a seed for a number of frames; returns the mean return at the end, or None
Train = Callable[[int, int], float | None]


def with_stable_baselines(sides: dict[str, Train], train: Train) -> dict[str, Train]:
    """`sides` and, where it is installed, Stable-Baselines3."""
    if find_spec("stable_baselines3") is None:
        print("stable_baselines3: not installed")
        return sides
    return {**sides, "sb3": train}


def compare(sides: dict[str, Train], frames: int, repetitions: int, warm_up: int) -> dict[str, float]:
    """Train each side with each seed, interleaved in one process on one thread; print and return the medians.

    Args:
        sides: by name; ratios are of the first to each other one.
        frames: of a training.
        repetitions: number of seeds.
        warm_up: frames of a training before, so that imports on first use count for none.
    """
    torch.set_num_threads(1)
    for train in sides.values():
        train(0, warm_up)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    returns: dict[str, list[float]] = {name: [] for name in sides}
    for seed in range(repetitions):
        for name, train in sides.items():
            wall, cpu = time.perf_counter(), time.process_time()
            found = train(seed, frames)
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
            returns[name] += [] if found is None else [found]
            end = "" if found is None else f", return {found:.1f}"
            wall, cpu = times[name][-1]
            print(f"{name:<11} seed {seed}: wall {wall:.1f} s, CPU {cpu:.1f} s{end}", flush=True)
    out: dict[str, float] = {}
    first, *others = sides
    for i, clock in enumerate(("wall", "cpu")):
        for name in sides:
            out[f"{name}_{clock}_seconds"] = round(statistics.median(pair[i] for pair in times[name]), 2)
        for name in others:
            ratios = [a[i] / b[i] for a, b in zip(times[first], times[name], strict=True)]
            out[f"{clock}_ratio_to_{name}"] = round(statistics.median(ratios), 3)
    for name, found in returns.items():
        if found:
            out[f"{name}_return"] = round(statistics.mean(found), 1)
    print(json.dumps(out))
    return out
