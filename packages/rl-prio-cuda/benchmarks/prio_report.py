"""Floors, goals and tables of the benchmark: numbers in, numbers and lines out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prio_gpu import Machine, Time

from rl.prio_cuda._layout import layout

DESIGN = {
    ("sample", 256): 4.0,
    ("sample", 2048): 4.0,
    ("sample", 65_536): 7.0,
    ("update", 256): 7.0,
    ("update", 2048): 10.0,
    ("update", 65_536): 15.0,
}
"""Microseconds on an H200 with 10^6 rows that the design reckons with, at the upper end."""

SINGLE, TOP = 1024, 2048  # as in the library: entries of the one block, children that the last launch takes


def launches(rows: int, batch: int, kind: str) -> int:
    """Kernels of one call: a sample makes its random numbers with one more."""
    if kind == "draw":
        return 1
    if kind == "sample":
        return 2
    wide = sum(children > TOP for children in layout(rows, 32).children[:-1])
    return 1 if batch <= SINGLE else 3 + wide


def waits(machine: Machine, rows: int) -> float:
    """Microseconds to walk from the head to a leaf: a load a level, and one for the leaves.

    Levels lie from the root down; what no longer fits into the cache waits for memory.
    """
    plan = layout(rows, 32)
    ends = [*(plan.at[level - 1] for level in range(len(plan.at) - 1, 0, -1)), plan.leaves, plan.size]
    return sum(machine.near if end <= machine.cache else machine.far for end in ends)


def floor(machine: Machine, rows: int, batch: int, kind: str) -> float:
    """Microseconds that a call cannot beat: launches, loads that wait for one another, and lines of the cache.

    An update reads and writes at each level. The levels far above are read by all and stay close. The L2 cache is
    taken for twice as fast as a copy.

    Args:
        machine: what it is made of.
        rows: of the tree.
        batch: entries of the call.
        kind: ``"draw"`` with given random numbers, ``"sample"`` with its own, or ``"update"``.
    """
    walk = waits(machine, rows) * (2 if kind == "update" else 1)
    lines = batch * 64 * (min(len(layout(rows, 32).at), 3) + 1)
    return machine.gap * launches(rows, batch, kind) + walk + lines / (2 * machine.bandwidth)


@dataclass(frozen=True)
class Goal:
    """What is to be reached.

    Args:
        what: in words.
        got: what was measured; None if it was not.
        bound: the goal.
        at_least: whether more is better.
        unit: of both; none where the goal is that something holds, which is 1, and what does not is 0.
        why: it was not measured, or does not hold.
    """

    what: str
    got: float | None
    bound: float
    at_least: bool
    unit: str
    why: str = ""

    @property
    def hit(self) -> bool | None:
        """Whether it was reached; None if that is not known."""
        if self.got is None:
            return None
        return self.got >= self.bound if self.at_least else self.got <= self.bound

    def __str__(self) -> str:
        word = {True: "hit ", False: "MISS", None: "----"}[self.hit]
        if not self.unit:
            return f"{word}  {self.what}" + (f": {self.why}" if self.why else "")
        bound = f"{'at least' if self.at_least else 'at most'} {self.bound:g} {self.unit}"
        got = f"not measured: {self.why}" if self.got is None else f"{self.got:.2f} {self.unit}"
        return f"{word}  {self.what}: {got} ({bound})"


Cells = Mapping[tuple[int, int], Mapping[tuple[str, str], Time]]
"""By rows and batch, then by side and kind."""


def goals(cells: Cells, checks: Mapping[str, str], absent: Mapping[str, str]) -> list[Goal]:
    """The goals for these measurements.

    Args:
        cells: times.
        checks: by name, what is wrong; empty where nothing is.
        absent: by side, why it was left out.
    """
    found = [
        Goal(
            f"{kind} of {batch:,} at 10^6 rows, time of the GPU",
            _gpu(cells, 10**6, batch, "cuda", kind),
            1.5 * estimate,
            at_least=False,
            unit="us",
            why="left out of this run",
        )
        for (kind, batch), estimate in DESIGN.items()
    ]
    why = absent.get("torchrl", "left out of this run")
    for kind, batch, times in (("update", 256, 20), ("update", 65_536, 500), ("sample", 256, 5), ("sample", 65_536, 5)):
        mine = _gpu(cells, 10**6, batch, "cuda", kind)
        theirs = _gpu(cells, 10**6, batch, "torchrl", kind)
        ratio = theirs / mine if mine and theirs else None
        what = f"{kind} of {batch:,} at 10^6 rows, time of the GPU beside TorchRL's"
        found.append(Goal(what, ratio, times, at_least=True, unit="times", why=why))
    found += [Goal(name, float(not wrong), 1, at_least=True, unit="", why=wrong) for name, wrong in checks.items()]
    return found


def _gpu(cells: Cells, rows: int, batch: int, side: str, kind: str) -> float | None:
    time = cells.get((rows, batch), {}).get((side, kind))
    return None if time is None else time.gpu


def crossover(one: Mapping[int, float], several: Mapping[int, float]) -> int:
    """The largest batch up to which one block is never slower than several launches; 0 if there is none.

    Example:
        >>> crossover({32: 5.0, 64: 6.0, 128: 9.0}, {32: 8.0, 64: 8.0, 128: 8.0})
        64
    """
    last = 0
    for batch in sorted(one):
        if one[batch] > several[batch]:
            break
        last = batch
    return last


HEADS = ("GPU", "host", "CPU", "x floor", "in graph")


def head(others: Sequence[str]) -> str:
    """The first line of the table."""
    ours = " ".join(f"{name:>8}" for name in HEADS)
    return f"{'rows':>11} {'batch':>6} {'call':6} {ours} " + " ".join(f"{name:>18}" for name in others)


def line(
    rows: int,
    batch: int,
    kind: str,
    times: Mapping[tuple[str, str], Time],
    least: float,
    others: Sequence[str],
) -> str:
    """A line of the table: our times, and those of others with how many times as long as ours they are."""
    mine, graph = times["cuda", kind], times.get(("graph", kind))
    cells = [f"{mine.gpu:8.1f} {mine.host:8.1f} {mine.cpu:8.1f} {mine.gpu / least:8.2f}"]
    cells.append(f"{graph.gpu:8.1f}" if graph else f"{'':>8}")
    for name in others:
        other = times.get((name, kind))
        cells.append(f"{other.whole:9.1f} {other.whole / mine.whole:7.1f}x" if other else f"{'-':>18}")
    return f"{rows:>11,} {batch:>6,} {kind:6} " + " ".join(cells)
