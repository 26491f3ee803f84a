"""Frames per second of `MultiSyncCollector` beside TorchRL's, 2 workers of 8 CartPoles each and the same network.

Goal: 15 times as fast. Needs TorchRL (``pip install torchrl``). Wall time, interleaved, medians.

    python packages/rl-collectors/benchmarks/multi_sync_torchrl.py [--repeats 5]
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import Any

import torch
import torchrl.collectors
import torchrl.envs
from tensordict.nn import TensorDictModule
from torch import nn

from rl.collectors import MultiSyncCollector
from rl.envs import GymEnv

FRAMES, COUNT = 2048, 8


class Act(nn.Module):
    """A small network that acts greedily."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """The best action, one-hot."""
        return nn.functional.one_hot(self.net(observation).argmax(-1), 2)


def theirs() -> Any:
    """TorchRL's environments of one worker."""
    return torchrl.envs.SerialEnv(COUNT, lambda: torchrl.envs.GymEnv("CartPole-v1"))


def rate(collector: Any) -> float:
    """Frames for each second of four batches."""
    start = time.perf_counter()
    for _ in range(4):
        next(collector)
    return 4 * FRAMES / (time.perf_counter() - start)


def main() -> None:
    """Print medians and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    policy = TensorDictModule(Act(), in_keys=["observation"], out_keys=["action"])
    make = partial(GymEnv, "CartPole-v1", num_envs=COUNT)
    settings: Any = {"frames_per_batch": FRAMES, "total_frames": -1}
    ours = MultiSyncCollector([make] * 2, policy, **settings)
    other = torchrl.collectors.MultiSyncCollector([theirs] * 2, policy, cat_results="stack", **settings)
    sides = [iter(ours), iter(other)]
    for side in sides:
        rate(side)
    pairs = [[rate(side) for side in sides] for _ in range(repeats)]
    left, right = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"MultiSyncCollector {left:,.0f} frames/s, TorchRL's {right:,.0f}; {left / right:.1f} times as fast (goal 15)"
    )
    ours.shutdown()
    other.shutdown()


if __name__ == "__main__":
    main()
