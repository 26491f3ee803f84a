"""The tree on a GPU: its floors, its goals, and what else a program could use. One command, about eight minutes.

``python benchmarks/tree.py [--quick] [--minutes 8] [--json FILE]``. In this order:

1. The machine: launch gap in a stream and in a graph, copy bandwidth, how long a load waits for the L2 cache and for
   memory. The floors are made of these.
2. What must hold before a time means anything: draws in proportion, repeated indices, and our CUDA runtime beside
   torch's.
3. One block against several launches.
4. All sides in turns, at 10^4 to 10^8 rows: microseconds of one call, by CUDA events (calls of ours wait in line, so
   that the host hides), until the call returns, and of the thread. Of others, the longer of GPU and host.
5. The goals, hit or missed.

What does not fit into the minutes is left out, and said.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from prio_checks import all_checks
from prio_gpu import Call, Gpu, Machine, Time, in_turns, measured
from prio_report import Goal, crossover, floor, goals, head, line
from prio_sides import ALPHA, BETA, EPS, OTHERS, Make, Side, made, sides

POOL = 8  # batches in turn, so that small ones do not stay in the first level of cache
ROWS = (10**6, 10**7, 10**5, 10**4, 10**8)  # what the goals are about comes first
SIZES = (32, 256, 1024, 2048, 8192, 65_536)
STEPS = 10  # in one graph


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Args:
        rows: capacities, in this order.
        sizes: of batches.
        rounds: of each side.
        seconds: for each side in each round.
        draws: rows, and draws, of the chi-square test.
        repeats: of the test of repeated indices.
        copied: bytes, to measure the bandwidth.
        minutes: after these, what is left is left out.
    """

    rows: tuple[int, ...] = ROWS
    sizes: tuple[int, ...] = SIZES
    rounds: int = 7
    seconds: float = 0.02
    draws: int = 10**7
    repeats: int = 20
    copied: int = 2**30
    minutes: float = 8.0


@dataclass
class Found:
    """What came out."""

    says: str = ""
    machine: Machine | None = None
    checks: dict[str, str] = field(default_factory=dict)
    crossovers: dict[int, int] = field(default_factory=dict)
    cells: dict[tuple[int, int], dict[tuple[str, str], Time]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def goals(self) -> list[Goal]:
        return goals(self.cells, self.checks, self.absent)

    def as_json(self) -> dict[str, Any]:
        """All numbers, for a file."""
        return {
            "says": self.says,
            "machine": asdict(self.machine) if self.machine else None,
            "checks": self.checks,
            "crossovers": self.crossovers,
            "times": [
                {"rows": rows, "batch": batch, "side": side, "kind": kind, **asdict(each)}
                for (rows, batch), times in self.cells.items()
                for (side, kind), each in times.items()
            ],
            "absent": self.absent,
            "left_out": self.left_out,
            "goals": [str(each) for each in self.goals()],
        }


def parse(words: list[str]) -> tuple[Plan, Path | None]:
    """The plan that the command line asks for, and where the numbers go."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10^6 rows and four batches only, about a minute")
    parser.add_argument("--rounds", type=int, default=Plan.rounds)
    parser.add_argument("--seconds", type=float, default=Plan.seconds, help="for each side in each round")
    parser.add_argument("--minutes", type=float, default=Plan.minutes, help="what does not fit is left out")
    parser.add_argument("--json", type=Path, help="a file for all numbers")
    given = parser.parse_args(words)
    rows, sizes = ((10**6,), (32, 256, 2048, 65_536)) if given.quick else (ROWS, SIZES)
    return Plan(rows, sizes, given.rounds, given.seconds, minutes=given.minutes), given.json


def follow_of() -> Callable[..., object] | None:
    """The walk along a ring; None, said, where there is no Triton."""
    if find_spec("triton") is None:
        print("Triton is not installed: how long a load waits is taken from the design")
        return None
    from prio_kernels import follow

    return follow


def say_machine(machine: Machine) -> None:
    near, far = 1000 * machine.near, 1000 * machine.far
    print(f"launch to launch {machine.gap:.2f} us in a stream, {machine.graph_gap:.2f} us in a graph")
    print(f"copy {machine.bandwidth / 1e6:.2f} TB/s, L2 cache {machine.cache / 2**20:.0f} MiB")
    print(f"a load waits {near:.0f} ns for it, {far:.0f} ns for memory" + ("" if machine.chased else " (not measured)"))


def say_runtimes() -> None:
    """Both runtimes of CUDA, and the driver."""
    from rl.prio_cuda._library import versions

    driver, runtime = versions()
    print(f"CUDA runtimes: ours {runtime}, linked in; torch's {torch.version.cuda}; the driver offers {driver}")


def blocks(gpu: Gpu, plan: Plan, rows: int, single: Callable[[int], int]) -> tuple[int, list[str]]:
    """The batch up to which one block is faster than several launches, and the lines of the table.

    Args:
        gpu: where they run.
        plan: rounds and seconds.
        rows: of the tree.
        single: sets how many entries one block updates at most; -1 for all that it can.
    """
    from rl.prio_cuda import CudaPriorityTree

    tree, lines = CudaPriorityTree(rows, device=gpu.device), []
    sums: dict[str, dict[int, float]] = {"one": {}, "several": {}}
    try:
        for batch in (32, 64, 128, 256, 512, 1024):
            index, error = torch.randint(rows, (batch,), device=gpu.device), torch.randn(batch, device=gpu.device)

            def update(limit: int, index: torch.Tensor = index, error: torch.Tensor = error) -> None:
                single(limit)
                tree.update_from_errors(index, error, EPS, ALPHA)

            calls: dict[str, tuple[Call, bool]] = {}
            for name, limit in (("one", -1), ("several", 0)):
                replay = gpu.capture(lambda limit=limit, update=update: [update(limit) for _ in range(STEPS)])
                calls[name] = (lambda _, limit=limit, update=update: update(limit)), True
                calls[f"{name} in a graph"] = (lambda _, replay=replay: replay()), True
            times = in_turns(gpu, calls, rounds=plan.rounds, seconds=plan.seconds)
            one, several = times["one"].gpu, times["several"].gpu
            sums["one"][batch], sums["several"][batch] = one, several
            graphs = [times[f"{name} in a graph"].gpu / STEPS for name in ("one", "several")]
            lines.append(
                f"{rows:>11,} {batch:>6,}   one block {one:6.1f}, several launches {several:6.1f};"
                f" in a graph {graphs[0]:6.1f}, {graphs[1]:6.1f}"
            )
    finally:
        single(-1)
    return crossover(sums["one"], sums["several"]), lines


@dataclass(frozen=True)
class Batches:
    """What the calls are given, on the GPU."""

    index: list[torch.Tensor]
    error: list[torch.Tensor]
    u: list[torch.Tensor]

    @property
    def size(self) -> int:
        return len(self.index[0])

    @staticmethod
    def of(rows: int, size: int, device: torch.device) -> Batches:
        return Batches(
            [torch.randint(rows, (size,), device=device) for _ in range(POOL)],
            [torch.randn(size, device=device) for _ in range(POOL)],
            [torch.rand(size, dtype=torch.float64, device=device) for _ in range(POOL)],
        )


def calls_of(side: Side, data: Batches) -> Iterator[tuple[str, Call]]:
    """What a side can do, by kind."""
    sample, update, draw = side.sample, side.update, side.draw
    if draw is not None:
        yield "draw", lambda i: draw(data.u[i % POOL])
    if sample is not None:
        yield "sample", lambda _: sample(data.size)
    if update is not None:
        yield "update", lambda i: update(data.index[i % POOL], data.error[i % POOL])


def captured(gpu: Gpu, rows: int, data: Batches) -> dict[str, Call]:
    """By kind, some calls in one graph; ``"both"`` are a sample and an update of what was drawn."""
    from rl.prio_cuda import CudaPriorityTree

    tree = CudaPriorityTree(rows, device=gpu.device)
    every = torch.arange(rows, device=gpu.device)
    tree.update_from_errors(every, torch.rand(rows, device=gpu.device), EPS, ALPHA)
    del every

    def both() -> None:
        index, _ = tree.sample_weighted(data.size, BETA)
        tree.update_from_errors(index, data.error[0], EPS, ALPHA)

    once: dict[str, Callable[[], object]] = {
        "draw": lambda: tree.sample_weighted(data.size, BETA, u=data.u[0]),
        "sample": lambda: tree.sample_weighted(data.size, BETA),
        "update": lambda: tree.update_from_errors(data.index[0], data.error[0], EPS, ALPHA),
        "both": both,
    }
    replays = {kind: gpu.capture(partial(repeated, call)) for kind, call in once.items()}
    return {kind: (lambda _, replay=replay: replay()) for kind, replay in replays.items()}


def repeated(call: Callable[[], object]) -> None:
    for _ in range(STEPS):
        call()


def cell(gpu: Gpu, plan: Plan, rows: int, size: int, present: dict[str, Side]) -> dict[tuple[str, str], Time]:
    """All times at this capacity and batch, by side and kind; of a graph, those of one step in it."""
    data, found = Batches.of(rows, size, gpu.device), {}
    graphs = captured(gpu, rows, data)
    for kind in ("draw", "sample", "update", "both"):
        calls = {
            name: (call, side.few)
            for name, side in present.items()
            for each, call in calls_of(side, data)
            if each == kind
        }
        calls["graph"] = graphs[kind], True
        for name, each in in_turns(gpu, calls, rounds=plan.rounds, seconds=plan.seconds).items():
            steps = STEPS if name == "graph" else 1
            found[name, kind] = Time(each.gpu / steps, each.host / steps, each.cpu / steps, each.spread)
    return found


def compare(gpu: Gpu, plan: Plan, found: Found, makes: dict[str, Make], over: Callable[[], bool]) -> None:
    """The table."""
    others = list(OTHERS)
    print("microseconds; of the others the longer of GPU and host, and how many times as long as ours")
    print(head([OTHERS[name] for name in others]), flush=True)
    for rows in plan.rows:
        if over():
            found.left_out.append(f"{rows:,} rows, for lack of time")
            continue
        present = made(makes, rows, gpu.device, found.absent)
        if "cuda" not in present:
            found.left_out.append(f"{rows:,} rows, for lack of memory")
            continue
        for size in plan.sizes:
            if over():
                found.left_out.append(f"{rows:,} rows, batch {size:,}, for lack of time")
                continue
            times = found.cells[rows, size] = cell(gpu, plan, rows, size, present)
            for kind in ("draw", "sample", "update"):
                least = floor(found.machine, rows, size, kind) if found.machine else 1.0
                print(line(rows, size, kind, times, least, others))
            print(f"{rows:>11,} {size:>6,} sample and update in one graph {times['graph', 'both'].gpu:.1f}", flush=True)
        del present
        gpu.forget()


def run(
    gpu: Gpu,
    plan: Plan,
    makes: dict[str, Make],
    trees: dict[str, Callable[..., Any]],
    follow: Callable[..., object] | None,
    single: Callable[[int], int],
) -> Found:
    """Everything, in the order of the module's text.

    Args:
        gpu: what is measured.
        plan: how much of it.
        makes: sides by name, ``"cuda"`` among them.
        trees: classes that are checked, by name.
        follow: see `prio_gpu.measured`.
        single: see `blocks`.
    """
    start = time.monotonic()
    found = Found(gpu.says())
    print(found.says, flush=True)

    def over() -> bool:
        return time.monotonic() - start > 60 * plan.minutes

    found.machine = measured(gpu, follow, seconds=plan.seconds, large=plan.copied)
    say_machine(found.machine)
    found.checks = all_checks(gpu, trees, rows=plan.draws, count=plan.draws, times=plan.repeats)
    for name, wrong in found.checks.items():
        print(f"{'WRONG' if wrong else 'right'}  {name}" + (f": {wrong}" if wrong else ""), flush=True)
    for rows in plan.rows:
        if over():
            found.left_out.append(f"one block against several launches at {rows:,} rows, for lack of time")
            continue
        found.crossovers[rows], lines = blocks(gpu, plan, rows, single)
        print("\n".join(lines))
        print(f"{rows:>11,} one block is never slower up to {found.crossovers[rows]:,} entries", flush=True)
        gpu.forget()
    compare(gpu, plan, found, makes, over)
    spreads = [each.spread for times in found.cells.values() for each in times.values()]
    if spreads:
        middle = sorted(spreads)[len(spreads) // 2]
        print(f"from the 10th to the 90th of 100 rounds: {middle:.0%} of the median time, at worst {max(spreads):.0%}")
    for each in found.goals():
        print(each)
    for each in found.left_out:
        print(f"left out: {each}")
    print(f"{time.monotonic() - start:.0f} seconds")
    return found


def main(words: list[str]) -> int:
    """Measure; 1 if there is no GPU to measure, or a check failed."""
    plan, path = parse(words)
    if not torch.cuda.is_available():
        print("This measures a GPU, and torch sees none: torch.cuda.is_available() is False.")
        return 1
    from rl.prio_cuda import CudaPriorityTree, TritonPriorityTree, why_not
    from rl.prio_cuda._signatures import functions

    device = torch.device("cuda", torch.cuda.current_device())
    if why_not():
        print(why_not())
        return 1
    say_runtimes()
    follow = follow_of()
    trees: dict[str, Callable[..., Any]] = {"library": CudaPriorityTree}
    if follow is not None:
        trees["Triton twin"] = TritonPriorityTree
    found = run(Gpu(device), plan, sides(), trees, follow, functions().rl_prio_single)
    if path is not None:
        path.write_text(json.dumps(found.as_json(), indent=1) + "\n")
    return int(any(found.checks.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
