"""The priority tree against plain prefix sums, other libraries that are installed, and the cost of touching memory.

Thread CPU time, all contenders interleaved, median of the rounds: ``python benchmarks/tree.py [--full]``.
Microseconds for one call: ``update`` of priorities from TD errors, and ``sample`` with importance weights.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from rl.native import NativePriorityTree, isa
from rl.native._library import use_isa

ALPHA, BETA, EPS = 0.6, 0.4, 1e-8
POOL = 8  # batches at least; more of small ones, so that they do not all lie in the first cache
Call = Callable[[int], object]


def clock(call: Call, seconds: float, pool: int) -> float:
    """Seconds for one call, of as many as take about `seconds`."""
    start = time.thread_time_ns()
    call(0)
    once = max((time.thread_time_ns() - start) / 1e9, 1e-7)
    count = max(1, min(2000, int(seconds / once)))
    start = time.thread_time_ns()
    for i in range(count):
        call(i % pool)
    return (time.thread_time_ns() - start) / 1e9 / count


def interleaved(calls: dict[str, Call], rounds: int, seconds: float, pool: int) -> dict[str, float]:
    """Median of each, in microseconds."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call(0)
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(clock(call, seconds, pool))
    return {name: 1e6 * statistics.median(times) for name, times in found.items()}


def native(rows: int, index: list[torch.Tensor], error: list[torch.Tensor]) -> tuple[Call, Call]:
    tree = NativePriorityTree(rows)
    tree.update_from_errors(torch.arange(rows), torch.rand(rows), EPS, ALPHA)
    return (
        lambda i: tree.update_from_errors(index[i], error[i], EPS, ALPHA),
        lambda i: tree.sample_weighted(len(index[i]), BETA),
    )


def with_numpy(rows: int, index: list[torch.Tensor], error: list[torch.Tensor]) -> tuple[Call, Call]:
    leaf = 1 - np.random.default_rng(0).random(rows, dtype=np.float32)  # none is zero
    places, errors, rng = [i.numpy() for i in index], [e.numpy() for e in error], np.random.default_rng(0)

    def update(i: int) -> None:
        leaf[places[i]] = (np.abs(errors[i]) + EPS) ** ALPHA

    def sample(i: int) -> object:
        ends = np.cumsum(leaf, dtype=np.float64)
        drawn = np.searchsorted(ends, rng.random(len(places[i])) * ends[-1], side="right")
        return drawn, (leaf[drawn] / leaf.min()) ** -BETA

    return update, sample


def with_torch(rows: int, index: list[torch.Tensor], error: list[torch.Tensor]) -> tuple[Call, Call]:
    leaf = 1 - torch.rand(rows)

    def update(i: int) -> None:
        leaf[index[i]] = (error[i].abs() + EPS).pow(ALPHA)

    def sample(i: int) -> object:
        ends = leaf.cumsum(0, dtype=torch.float64)
        drawn = torch.searchsorted(ends, torch.rand(len(index[i]), dtype=torch.float64) * ends[-1], right=True)
        return drawn, (leaf[drawn] / leaf.min()).pow(-BETA)

    return update, sample


def with_cpprb(rows: int, index: list[torch.Tensor], error: list[torch.Tensor]) -> tuple[Call, Call] | None:
    try:
        from cpprb import PrioritizedReplayBuffer
    except ImportError:
        return None
    buffer = PrioritizedReplayBuffer(rows, {"x": {"dtype": np.uint8}}, alpha=ALPHA, eps=EPS)
    buffer.add(x=np.zeros(rows, np.uint8), priorities=np.random.default_rng(0).random(rows))
    places, errors = [i.numpy() for i in index], [e.abs().numpy() for e in error]
    return (
        lambda i: buffer.update_priorities(places[i], errors[i]),
        lambda i: buffer.sample(len(places[i]), beta=BETA),
    )


def with_torchrl(rows: int, index: list[torch.Tensor], error: list[torch.Tensor]) -> tuple[Call, Call] | None:
    try:
        from torchrl.data import ListStorage
        from torchrl.data.replay_buffers.samplers import PrioritizedSampler

        sampler = PrioritizedSampler(rows, alpha=ALPHA, beta=BETA, eps=EPS)
        sampler.update_priority(torch.arange(rows), torch.rand(rows))
    except Exception as problem:  # noqa: BLE001  its compiled trees load with one version of torch only
        print(f"TorchRL is left out: {type(problem).__name__}: {str(problem).splitlines()[0][:100]}")
        return None
    storage = ListStorage(rows)
    storage._storage = range(rows)  # noqa: SLF001  only its length is asked for
    return (
        lambda i: sampler.update_priority(index[i], error[i].abs()),
        lambda i: sampler.sample(storage, len(index[i])),
    )


def floor(rows: int, index: list[torch.Tensor]) -> Call:
    """As many independent loads of one leaf."""
    leaf, out = torch.rand(rows), [torch.empty(len(i)) for i in index]
    return lambda i: torch.index_select(leaf, 0, index[i], out=out[i])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="all sizes, up to 10^7 rows")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.01, help="for each contender in each round")
    parser.add_argument("--isa", help="scalar, AVX2 or AVX-512, instead of the widest")
    options = parser.parse_args()
    torch.set_num_threads(1)
    use_isa(options.isa)
    print(f"{isa()} instructions, torch {torch.__version__}; microseconds, update / sample")
    others = {"numpy": with_numpy, "torch": with_torch, "cpprb": with_cpprb, "TorchRL": with_torchrl}
    for rows in (10**4, 10**5, 10**6, 10**7) if options.full else (10**4, 10**6):
        for batch in (32, 256, 2048, 65536):
            pool = max(POOL, min(512, 2**19 // batch))
            index = [torch.randint(rows, (batch,)) for _ in range(pool)]
            error = [torch.randn(batch) for _ in range(pool)]
            made = {"native": native(rows, index, error)}
            for name, make in others.items():
                pair = make(rows, index, error)
                if pair is None:
                    others[name] = lambda *_: None
                else:
                    made[name] = pair
            run = partial(interleaved, rounds=options.rounds, seconds=options.seconds, pool=pool)
            update = run({name: pair[0] for name, pair in made.items()} | {"floor": floor(rows, index)})
            sample = run({name: pair[1] for name, pair in made.items()})
            cells = [f"{name} {update[name]:,.1f} / {sample[name]:,.1f}" for name in made]
            print(f"{rows:>10,} x {batch:<6,} " + "   ".join([*cells, f"loads {update['floor']:,.1f}"]), flush=True)


if __name__ == "__main__":
    main()
