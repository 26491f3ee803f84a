"""The priority tree against other libraries that are installed, plain prefix sums, and the cost of touching memory.

Microseconds for one call, update / sample: an update of priorities from TD errors, and a draw with importance weights.
CPU time of the thread, all implementations interleaved in one process, medians of the rounds; one thread. `TorchRL` is
its `PrioritizedSampler`, `its trees` the two compiled trees alone. `lines` are random reads of as many leaves and
nodes. Ratios are of CPU time, where nothing else is said.

    python benchmarks/tree.py [--full] [--rounds 7] [--isa scalar]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import torch
from tree_sides import Batch, Lines, Side, present

from rl.native import isa
from rl.native._library import use_isa

SIZES = (32, 256, 2048, 65536)
Call = Callable[[int], object]
Pair = tuple[float, float]  # CPU time of the thread, wall time
Both = tuple[dict[str, Pair], dict[str, Pair]]  # of updates, of draws; by side


def clock(call: Call, seconds: float, pool: int) -> Pair:
    """Microseconds for one call, of as many as take about `seconds`."""
    start = time.perf_counter_ns()
    call(0)
    once = max((time.perf_counter_ns() - start) / 1e9, 1e-7)
    count = max(1, min(2000, int(seconds / once)))
    cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
    for i in range(count):
        call(i % pool)
    return (time.thread_time_ns() - cpu) / 1e3 / count, (time.perf_counter_ns() - wall) / 1e3 / count


def interleave(calls: dict[str, Call], rounds: int, seconds: float, pool: int) -> dict[str, Pair]:
    """Medians of each."""
    found: dict[str, list[Pair]] = {name: [] for name in calls}
    for call in calls.values():
        call(0)
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(clock(call, seconds, pool))
    return {
        name: (statistics.median(cpu for cpu, _ in times), statistics.median(wall for _, wall in times))
        for name, times in found.items()
    }


def measure(sides: dict[str, Side], lines: Lines, size: int, batches: list[Batch], options: argparse.Namespace) -> Both:
    """Updates and draws of one size."""
    reads = [lines.prepare(batch) for batch in batches]
    updates: dict[str, Call] = {name: lambda i, s=side: s.update(batches[i]) for name, side in sides.items()}
    draws: dict[str, Call] = {name: lambda _, s=side: s.sample(size) for name, side in sides.items()}
    updates["lines"] = draws["lines"] = lambda i: reads[i]()
    run = partial(interleave, rounds=options.rounds, seconds=options.seconds, pool=len(batches))
    return run(updates), run(draws)


def cell(both: Both, name: str) -> str:
    return " / ".join(f"{x[name][0]:,.1f}" for x in both)


def ratio(both: Both, above: str, below: str, clock: int = 0) -> str:
    return " / ".join(f"{x[above][clock] / x[below][clock]:.2g}" for x in both)


def goals(found: dict[tuple[int, int], Both]) -> None:
    """What was aimed at, and what was found."""
    print("\ngoals, update / sample:")
    if any("TorchRL" in both[0] for both in found.values()):
        at = found[10**6, 256]
        print(f"TorchRL / native at 10^6 x 256: at least 10 / 8, found {ratio(at, 'TorchRL', 'native')}")
        least = (min(both[i]["TorchRL"][0] / both[i]["native"][0] for both in found.values()) for i in (0, 1))
        print(f"TorchRL / native everywhere: at least 5, found {' / '.join(f'{x:.2g}' for x in least)}")
    for (rows, size), both in found.items():
        if rows >= 10**6 and size == SIZES[-1]:
            print(f"native / lines at {rows:,} x {size:,}: at most 1.5, found {ratio(both, 'native', 'lines')}")
    print(f"native at 10^6 x 32: at most 5 us, found {cell(found[10**6, 32], 'native')}")


def installed(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"no {name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all sizes, up to 10^7 rows")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.01, help="for each side in each round")
    parser.add_argument("--isa", help="scalar, AVX2 or AVX-512, instead of the widest")
    options = parser.parse_args()
    torch.set_num_threads(1)
    use_isa(options.isa)
    torch.manual_seed(0)
    kinds = present()
    print(f"{isa()} instructions, torch {torch.__version__}, {installed('torchrl')}, {installed('cpprb')}\n")
    peers = [*(name for name in kinds if name != "native"), "lines"]
    compared = [] if "TorchRL" not in kinds else ["TorchRL / native", "the same, wall time"]
    head = ["rows", "batch", "native", *peers, *compared, "native / lines"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    found: dict[tuple[int, int], Both] = {}
    for rows in (10**4, 10**5, 10**6, 10**7) if options.full else (10**4, 10**6):
        sides, lines = {name: kind(rows) for name, kind in kinds.items()}, Lines(rows)
        for size in SIZES:
            # More of small batches, so that they do not all lie in the first cache.
            batches = [Batch.draw(rows, size) for _ in range(max(8, min(512, 2**19 // size)))]
            both = found[rows, size] = measure(sides, lines, size, batches, options)
            cells = [f"{rows:,}", f"{size:,}", *(cell(both, name) for name in ("native", *peers))]
            cells += [ratio(both, "TorchRL", "native", clock) for clock in range(len(compared))]
            print(f"| {' | '.join([*cells, ratio(both, 'native', 'lines')])} |", flush=True)
    goals(found)


if __name__ == "__main__":
    main()
