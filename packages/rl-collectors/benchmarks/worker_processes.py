"""Frames per second of `MultiSyncCollector` and `MultiAsyncCollector` with two workers, beside one process.

Claims, for environments whose step costs half a millisecond of arithmetic: `MultiSyncCollector` with 2 workers of 8
environments collects 1.6 times as fast as one `Collector` of 16; `MultiAsyncCollector` reaches 0.95 of the workers'
free rate while the learner is busy half of the time. On a machine with two idle cores; wall time, interleaved.

    python packages/rl-collectors/benchmarks/worker_processes.py [--step 0.0005] [--repeats 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from rl.core.interfaces import Leaves
from rl.testing import CountingEnv

STEPS = 32


class Busy(CountingEnv):
    """Each environment computes for some time at every step."""

    seconds = 0.0

    def step_leaves(self, root: Leaves) -> Leaves:
        end = time.perf_counter() + self.seconds * self.batch_size.numel()
        while time.perf_counter() < end:
            pass
        return super().step_leaves(root)


def make(count: int, seconds: float) -> Busy:
    """`count` environments."""
    env = Busy(50, batch_size=(count,))
    env.seconds = seconds
    return env


class Act(nn.Module):
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 2))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """The best action."""
        return self.net(observation).argmax(-1)


def timed(collector: Any, batches: int, busy: float = 0.0) -> float:
    """Frames for each second, after those that were collected ahead."""
    for _ in range(4):
        collector.collect()
    frames, start = 0, time.perf_counter()
    for _ in range(batches):
        frames += collector.collect().numel()
        end = time.perf_counter() + busy
        while time.perf_counter() < end:
            time.sleep(0.001)
    return frames / (time.perf_counter() - start)


def main() -> None:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=float, default=0.0005)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    policy = TensorDictModule(Act(), in_keys=["observation"], out_keys=["action"])
    one = Collector(make(16, options.step), policy, frames_per_batch=16 * STEPS)
    settings: Any = {"frames_per_batch": 16 * STEPS}
    two = MultiSyncCollector([partial(make, 8, options.step)] * 2, policy, **settings)
    free = MultiAsyncCollector([partial(make, 8, options.step)] * 2, policy, frames_per_batch=8 * STEPS)
    for each in (one, two, free):
        each.collect()
    rows: list[tuple[float, float, float, float]] = []
    for _ in range(options.repeats):
        single, double, rate = timed(one, 4), timed(two, 4), timed(free, 8)
        rows.append((single, double, rate, timed(free, 8, busy=4 * STEPS / rate)))
    single, double, rate, busy = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"one process: {single:.0f} frames/s; MultiSyncCollector, 2 workers: {double:.0f}")
    print(f"ratio {statistics.median(row[1] / row[0] for row in rows):.2f} (goal 1.6)")
    print(f"MultiAsyncCollector, 2 workers, free: {rate:.0f} frames/s; learner busy half of the time: {busy:.0f}")
    print(f"ratio {statistics.median(row[3] / row[2] for row in rows):.2f} (goal 0.95)")
    for each in (one, two, free):
        each.shutdown()


if __name__ == "__main__":
    main()
