"""Prioritized replay as users call it, against TorchRL and bare `index_select`; and plain PyTorch trees against numpy.

The implementations run interleaved in one process, so that they meet the same machine. Medians of the thread's CPU
time and of wall time, in microseconds; one thread. The native tree takes part where rl-native is installed, TorchRL
where its compiled trees load. Three tables: a whole sample, the sampler alone at many sizes, the plain PyTorch trees.

    python benchmarks/prioritized.py [--full] [--only trees] [--rows 1000000] [--batch 256] [--rounds 9]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from prioritized_sides import ALPHA, BETA, batch, torchrl_buffer, torchrl_sampler, torchrl_works
from tensordict import TensorDict

from rl.core.errors import BackendError
from rl.replay import LazyTensorStorage, PrioritizedSampler, TensorDictPrioritizedReplayBuffer
from rl.replay._priority_tree import PrefixTree

Pair = tuple[float, float]  # CPU time of the thread, wall time
Call = Callable[[int], object]


def interleave(sides: dict[str, Call], rounds: int, seconds: float = 0.01) -> dict[str, Pair]:
    """Medians of each; in each round as many calls of it, one after the other, as take about `seconds`.

    How many those are, calls say that go before: the first ones find caches as another side left them.
    """
    times: dict[str, list[Pair]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, call in sides.items():
            count, spent = 1, timed(call, 1)
            while spent[1] < seconds * 1e6 / 10:
                count *= 2
                spent = timed(call, count)
            count = max(1, int(count * seconds * 1e6 / spent[1]))
            spent = timed(call, count)
            if turn:  # the first warms up
                times[name].append((spent[0] / count, spent[1] / count))
    return {name: (statistics.median(x for x, _ in t), statistics.median(x for _, x in t)) for name, t in times.items()}


def timed(call: Call, count: int) -> Pair:
    """Microseconds of `count` calls."""
    cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
    for i in range(count):
        call(i)
    return (time.thread_time_ns() - cpu) / 1e3, (time.perf_counter_ns() - wall) / 1e3


def table(head: list[str]) -> None:
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")


def backends() -> list[str]:
    try:
        PrioritizedSampler(1, ALPHA, BETA, backend="native")
    except BackendError:
        return ["torch"]
    return ["native", "torch"]


def own_buffer(data: TensorDict, size: int, backend: str) -> TensorDictPrioritizedReplayBuffer:
    rows = len(data)
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=ALPHA, beta=BETA, storage=LazyTensorStorage(rows), batch_size=size, backend=backend
    )
    buffer.extend(data)
    buffer.update_priority(torch.arange(rows), torch.rand(rows))
    return buffer


def whole_sample(options: argparse.Namespace, *, peer: bool) -> None:
    rows, size = options.rows, options.batch
    data = batch(rows)
    leaves = [data[key].clone() for key in data.keys(include_nested=True, leaves_only=True)]

    def bare(_: int) -> list[torch.Tensor]:
        index = torch.randint(rows, (size,))
        return [leaf.index_select(0, index) for leaf in leaves]

    sides: dict[str, Call] = {f"{len(leaves)} bare index_select": bare}
    made: dict[str, Any] = {backend: own_buffer(data, size, backend) for backend in backends()}
    if peer:
        made["TorchRL"] = torchrl_buffer(data, size)
    for name, buffer in made.items():
        sides[f"buffer.sample, {name}"] = lambda _, b=buffer: b.sample()
    found = interleave(sides, 3 * options.rounds)
    base, own = next(iter(found.values())), found[f"buffer.sample, {backends()[0]}"]
    table([f"sample({size}) of {rows:,}", "us CPU", "us wall", "/ bare", "/ rl-replay", "the same, wall time"])
    for name, (cpu, wall) in found.items():
        ratios = f"{cpu / base[0]:.2f} | {cpu / own[0]:.2f} | {wall / own[1]:.2f}"
        print(f"| {name} | {cpu:,.1f} | {wall:,.1f} | {ratios} |")
    print("\ngoals: at most 2.5 bare; TorchRL at least 5 times rl-replay")


def own_sampler(rows: int, backend: str, storage: Any) -> PrioritizedSampler:
    sampler = PrioritizedSampler(rows, ALPHA, BETA, backend=backend)
    sampler.sample(storage, 1)  # makes it look at the storage
    sampler.update_priority(torch.arange(rows), torch.rand(rows))
    return sampler


def sampler_times(made: dict[str, tuple[Any, Any]], rows: int, size: int, rounds: int) -> list[dict[str, Pair]]:
    """Of updates, and of draws."""
    # More of small batches, so that they do not all lie in the first cache.
    pool = [(torch.randint(rows, (size,)), torch.rand(size)) for _ in range(max(8, min(512, 2**19 // size)))]
    updates: dict[str, Call] = {
        name: lambda i, s=sampler: s.update_priority(*pool[i % len(pool)]) for name, (sampler, _) in made.items()
    }
    draws: dict[str, Call] = {name: lambda _, s=s, t=storage: s.sample(t, size) for name, (s, storage) in made.items()}
    return [interleave(updates, rounds), interleave(draws, rounds)]


def samplers(options: argparse.Namespace, *, peer: bool) -> None:
    names = [*backends(), *(["TorchRL"] if peer else [])]
    table(["rows", "batch", *names, *(["TorchRL / rl-replay", "the same, wall time"] if peer else [])])
    least = [float("inf")] * 2
    for rows in (10**4, 10**5, 10**6, 10**7) if options.full else (10**4, options.rows):
        storage = LazyTensorStorage(rows)
        storage.set(torch.arange(rows), TensorDict(x=torch.zeros(rows, dtype=torch.uint8), batch_size=[rows]))
        made: dict[str, tuple[Any, Any]] = {b: (own_sampler(rows, b, storage), storage) for b in backends()}
        if peer:
            made["TorchRL"] = torchrl_sampler(rows)
        for size in (32, 256, 2048, 65536):
            both = sampler_times(made, rows, size, options.rounds)
            cells = [f"{rows:,}", f"{size:,}", *(" / ".join(f"{x[name][0]:,.1f}" for x in both) for name in names)]
            for clock in range(2 if peer else 0):
                ratios = [x["TorchRL"][clock] / x[names[0]][clock] for x in both]
                least = [min(pair) for pair in zip(least, ratios, strict=True)] if clock == 0 else least
                cells.append(" / ".join(f"{x:.2g}" for x in ratios))
            print(f"| {' | '.join(cells)} |", flush=True)
    if peer:
        found = " / ".join(f"{x:.2g}" for x in least)
        print(f"\ngoals: TorchRL / rl-replay at least 10 / 8 at 10^6 x 256, 5 everywhere; least found {found}")


class Numpy:
    """The cumulative sum over all priorities in numpy, which the plain PyTorch tree should beat."""

    def __init__(self, rows: int) -> None:
        self.array, self.rng = np.full(rows, 0.5, np.float32), np.random.default_rng(0)

    def update(self, index: torch.Tensor, priority: torch.Tensor) -> None:
        self.array[index.numpy()] = priority.numpy()

    def sample(self, size: int) -> object:
        running = self.array.cumsum(dtype=np.float64)
        drawn = running.searchsorted(self.rng.random(size) * running[-1], side="right")
        return drawn, self.array[drawn]

    def min(self) -> object:
        return self.array.min()


def torch_trees(options: argparse.Namespace, *, peer: bool) -> None:  # noqa: ARG001  TorchRL has none
    """Time an update and the sample after it."""
    kinds = {"numpy cumsum and searchsorted": Numpy, "PrefixTree": PrefixTree}
    table(["rows", "batch", *(f"{name}, us" for name in kinds), "numpy / PrefixTree"])
    sizes: list[int] = [10_000, 100_000, 200_000, 300_000, options.rows]
    least = float("inf")
    for rows in [1_000, 30_000, 65_536, *sizes, 10_000_000] if options.full else sizes:
        made: dict[str, Any] = {name: kind(rows) for name, kind in kinds.items()}
        for tree in made.values():
            tree.update(torch.arange(rows), torch.rand(rows) + 0.1)
        for size in (32, 256, 2048, 65536) if options.full else (32, 256, 2048):
            pool = [(torch.randint(rows, (size,)), torch.rand(size) + 0.1) for _ in range(32)]

            def step(turn: int, tree: Any, pool: Any = pool, size: int = size) -> object:
                tree.update(*pool[turn % len(pool)])
                return tree.sample(size), tree.min()

            sides: dict[str, Call] = {name: lambda i, t=tree: step(i, t) for name, tree in made.items()}
            found = interleave(sides, options.rounds)
            times = " | ".join(f"{cpu:,.0f}" for cpu, _ in found.values())
            gain = found["numpy cumsum and searchsorted"][0] / found["PrefixTree"][0]
            least = min(least, gain)
            print(f"| {rows:,} | {size:,} | {times} | {gain:.2f} |", flush=True)
    print(f"\ngoal: at least 1; least found {least:.2f}")


TABLES = {"sample": whole_sample, "sampler": samplers, "trees": torch_trees}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="samplers and trees at all sizes, up to 10^7 rows")
    parser.add_argument("--only", choices=TABLES, help="this table alone")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    peer = torchrl_works()
    try:
        print(f"torch {torch.__version__}, torchrl {version('torchrl')}")
    except PackageNotFoundError:
        print(f"torch {torch.__version__}, no torchrl")
    for name, show in TABLES.items():
        if options.only in (None, name):
            show(options, peer=peer)


if __name__ == "__main__":
    main()
