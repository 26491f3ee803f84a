"""Frames per second of every collector on the same environments: the table of docs/howto/processes.md.

16 environments, a small network, two worker processes where there are workers, all in turns in one process. The
columns are environments whose step costs no more than some tensors, half a millisecond of arithmetic, and the same on
average where one step in ten takes nine times as long as the others.

    python packages/rl-collectors/benchmarks/which_collector.py [--repeats 3]
"""

from __future__ import annotations

import argparse
import random
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
from rl.envs import AsyncEnvPool, CartPoleEnv, ParallelEnv, SerialEnv

ENVS, STEPS = 16, 32
CASES = {"CartPole": (0.0, 0.0), "0.5 ms": (0.0005, 0.0005), "0.5 ms, uneven": (0.00028, 0.0025)}


class Costly(CartPoleEnv):
    """CartPole whose steps take longer."""

    usual = rare = 0.0

    def _step_leaves(self, root: Leaves) -> Leaves:
        if self.usual:
            end = time.perf_counter() + (self.rare if random.random() < 0.1 else self.usual)
            while time.perf_counter() < end:
                pass
        return super()._step_leaves(root)


def make(seconds: tuple[float, float]) -> Costly:
    """One environment."""
    env = Costly()
    env.usual, env.rare = seconds
    return env


def policy() -> TensorDictModule:
    """A small network that acts greedily."""
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))

    def act(observation: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(net(observation).argmax(-1), 2)

    return TensorDictModule(act, in_keys=["observation"], out_keys=["action"])


def collectors(seconds: tuple[float, float]) -> dict[str, Callable[[], Any]]:
    """Functions that make the collectors."""
    one: Any = partial(make, seconds)
    half: Any = partial(SerialEnv, ENVS // 2, one)
    frames: Any = {"frames_per_batch": ENVS * STEPS}
    return {
        "Collector(SerialEnv)": lambda: Collector(SerialEnv(ENVS, one), policy(), **frames),
        "Collector(ParallelEnv)": lambda: Collector(ParallelEnv(ENVS, one, processes=2), policy(), **frames),
        "MultiSyncCollector": lambda: MultiSyncCollector([half] * 2, policy(), **frames),
        "MultiAsyncCollector": lambda: MultiAsyncCollector([half] * 2, policy(), frames_per_batch=ENVS * STEPS),
        "AsyncBatchedCollector": lambda: AsyncBatchedCollector(
            AsyncEnvPool([half] * 2), policy(), min_batch_size=1, **frames
        ),
    }


def rate(collector: Any, busy: float, batches: int = 4) -> float:
    """Frames for each second, with a learner that is busy for some seconds after each batch."""
    for _ in range(3):
        collector.collect()
    frames, start = 0, time.perf_counter()
    for _ in range(batches):
        frames += collector.collect().numel()
        end = time.perf_counter() + busy
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
    for case, seconds in CASES.items():
        made = {name: function() for name, function in collectors(seconds).items()}
        for busy in (False, True):
            pause = ENVS * STEPS * 0.00025 if busy else 0.0
            if busy and case != "0.5 ms":
                continue
            found: dict[str, list[float]] = {name: [] for name in made}
            for _ in range(repeats):
                for name, collector in made.items():
                    found[name].append(rate(collector, pause))
            column = f"{case}, learner busy" if busy else case
            columns[column] = {name: statistics.median(rates) for name, rates in found.items()}
        for collector in made.values():
            collector.shutdown()
    print("| frames/s |", " | ".join(columns), "|\n|---|", "---|" * len(columns), sep="")
    for name in next(iter(columns.values())):
        print(f"| `{name}` |", " | ".join(f"{column[name]:,.0f}" for column in columns.values()), "|")


if __name__ == "__main__":
    main()
