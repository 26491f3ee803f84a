"""What the scripts here share: interleaved timing, and TorchRL where it is installed."""

from __future__ import annotations

import logging
import statistics
import time
import warnings
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from typing import Any

Pair = tuple[float, float]  # CPU time of the thread, wall time
Sides = dict[str, Callable[[], object]]


@cache
def torchrl_values() -> Any:
    """TorchRL's `objectives.value`; None, with a word why, if it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its compiled trees, which are not needed here
            from torchrl.objectives import value
    except ImportError as problem:
        print(f"TorchRL: left out, {problem}")
        return None
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    print(f"torchrl {version('torchrl')}")
    return value


def interleave(sides: Sides, rounds: int, seconds: float = 0.01) -> dict[str, Pair]:
    """Medians of each, in microseconds; in each round as many calls, one after the other, as take about `seconds`.

    How many those are, calls say that go before: the first ones find caches as another side left them.
    """
    times: dict[str, list[Pair]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, call in sides.items():
            count, spent = 1, clock(call, 1)
            while spent[1] < seconds * 1e9 / 10:
                count *= 2
                spent = clock(call, count)
            count = max(1, int(count * seconds * 1e9 / spent[1]))
            spent = clock(call, count)
            if turn:  # the first warms up
                times[name].append((spent[0] / 1e3 / count, spent[1] / 1e3 / count))
    return {name: (statistics.median(x for x, _ in t), statistics.median(x for _, x in t)) for name, t in times.items()}


def clock(call: Callable[[], object], count: int) -> Pair:
    """Nanoseconds of `count` calls."""
    cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
    for _ in range(count):
        call()
    return time.thread_time_ns() - cpu, time.perf_counter_ns() - wall


def ratio(found: dict[str, Pair], above: str, below: str) -> str:
    """Of CPU time, that of wall time in brackets."""
    if above not in found or below not in found:
        return "-"
    return f"{found[above][0] / found[below][0]:,.3g} ({found[above][1] / found[below][1]:,.3g})"


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table(head: list[str]) -> None:
    print(f"\n{row(head)}\n|{'---|' * len(head)}")
