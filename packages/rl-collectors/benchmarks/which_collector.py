"""Frames per second of every collector on the same environments: the table of docs/howto/scaling.md.

16 environments and a small network, all interleaved in one process. The columns are environments whose step costs no
more than some tensors (two workers), half a millisecond of arithmetic (two workers), the same with a learner that is
busy for as long again, and simulators that wait: 2 ms a step, one of them 20 ms (16 workers).

    python packages/rl-collectors/benchmarks/which_collector.py [--repeats 3]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl.collectors import AsyncBatchedCollector, Collector, MultiAsyncCollector, MultiSyncCollector
from rl.core.interfaces import Leaves
from rl.envs import CartPoleEnv, ParallelEnv, SerialEnv

ENVS, STEPS = 16, 32
CASES = {"CartPole": (0.0, 2), "0.5 ms": (0.0005, 2), "waits 2 ms, one 20 ms": (0.002, ENVS)}
"""Seconds of a step, and workers."""


class Costly(CartPoleEnv):
    """CartPole whose steps take longer."""

    seconds, waits = 0.0, False

    def _step_leaves(self, root: Leaves) -> Leaves:
        end = time.perf_counter() + self.seconds
        if self.waits:
            time.sleep(self.seconds)
        while time.perf_counter() < end:
            pass
        return super()._step_leaves(root)


def make(seconds: float, number: int, *, waits: bool) -> Costly:
    """Environment `number`."""
    env = Costly()
    env.seconds, env.waits = seconds * (10 if waits and number == 0 else 1), waits
    return env


def policy() -> TensorDictModule:
    """A small network that acts greedily."""
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))

    def act(observation: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(net(observation).argmax(-1), 2)

    return TensorDictModule(act, in_keys=["observation"], out_keys=["action"])


def collectors(seconds: float, workers: int) -> dict[str, Callable[[], Any]]:
    """Functions that make the collectors."""
    makers: list[Any] = [partial(make, seconds, number, waits=workers == ENVS) for number in range(ENVS)]
    share = ENVS // workers
    shares: Any = [partial(SerialEnv, share, makers[i * share : (i + 1) * share]) for i in range(workers)]
    frames: Any = {"frames_per_batch": ENVS * STEPS}
    return {
        "Collector(SerialEnv)": lambda: Collector(SerialEnv(ENVS, makers), policy(), **frames),
        "Collector(ParallelEnv)": lambda: Collector(ParallelEnv(ENVS, makers, processes=workers), policy(), **frames),
        "MultiSyncCollector": lambda: MultiSyncCollector(shares, policy(), **frames),
        "MultiAsyncCollector": lambda: MultiAsyncCollector(shares, policy(), frames_per_batch=share * STEPS),
        "AsyncBatchedCollector": lambda: AsyncBatchedCollector(shares, policy(), min_batch_size=1, **frames),
    }


def rate(collector: Any, busy: float) -> float:
    """Frames for each second, with a learner that is busy for some seconds for every 512 frames."""
    collected = 0
    while collected < ENVS * STEPS:  # what was collected ahead
        collected += collector.collect().numel()
    frames, start = 0, time.perf_counter()
    while frames < 4 * ENVS * STEPS:
        count = collector.collect().numel()
        frames += count
        end = time.perf_counter() + busy * count / (ENVS * STEPS)
        while time.perf_counter() < end:
            time.sleep(0.001)
    return frames / (time.perf_counter() - start)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    columns: dict[str, dict[str, float]] = {}
    for case, (seconds, workers) in CASES.items():
        made = {name: function() for name, function in collectors(seconds, workers).items()}
        busies = {case: 0.0}
        if case == "0.5 ms":
            busies["0.5 ms, learner busy"] = ENVS * STEPS * seconds / 2
        for column, busy in busies.items():
            found: dict[str, list[float]] = {name: [] for name in made}
            for _ in range(repeats):
                for name, collector in made.items():
                    found[name].append(rate(collector, busy))
            columns[column] = {name: statistics.median(rates) for name, rates in found.items()}
        for collector in made.values():
            collector.shutdown()
    print("| frames/s | ", " | ".join(columns), " |\n|---|", "---|" * len(columns), sep="")
    for name in next(iter(columns.values())):
        print(f"| `{name}` |", " | ".join(f"{column[name]:,.0f}" for column in columns.values()), "|")


if __name__ == "__main__":
    main()
