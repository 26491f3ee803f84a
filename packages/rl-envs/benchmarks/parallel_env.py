"""Speed of `ParallelEnv` against `SerialEnv`, `gymnasium.vector.AsyncVectorEnv` and TorchRL's `ParallelEnv`.

Two cases, each with 16 environments in two worker processes and random actions:

- ``slow``: a simulator that computes for 0.5 ms a step, against one process (`SerialEnv`). Goal: 1.7 times as fast.
- ``cartpole``: CartPole-v1, against one process for each environment (`AsyncVectorEnv`, goal: 3 times as fast; TorchRL,
  if it is installed, goal: 10 times).

Both sides run interleaved; medians of ratios of wall-clock times over the repeats.

    python packages/rl-envs/benchmarks/parallel_env.py [--envs 16] [--processes 2] [--steps 100] [--repeats 7]
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch

from rl.envs import EnvBase, GymEnv, GymWrapper, ParallelEnv, SerialEnv

SECONDS = 0.5e-3  # of a step of the slow simulator


class Slow(gymnasium.Env[np.ndarray, int]):
    """Computes for `SECONDS` of processor time a step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed, options=options)
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        end = time.thread_time() + SECONDS
        while time.thread_time() < end:
            pass
        return np.full(4, action, np.float32), 1.0, False, False, {}


def slow() -> EnvBase:
    return GymWrapper(Slow(), categorical_action_encoding=True)


def cartpole() -> EnvBase:
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def leaf_steps(env: EnvBase) -> Callable[[int], None]:
    """Steps with resets, as a collector takes them."""
    leaf: Any = env.lowered()
    root = leaf.reset_leaves()

    def run(steps: int) -> None:
        nonlocal root
        for _ in range(steps):
            outcome = leaf.step_leaves({**root, "action": env.action_spec.rand()})
            root = {**root, **{key: value for key, value in outcome.items() if key != "reward"}}
            if bool(outcome["done"].any()):
                root = leaf.reset_leaves(root, outcome["done"])

    return run


def vector_steps(env: Any) -> Callable[[int], None]:
    """Steps of a Gymnasium vector environment, with observations as tensors."""
    env.reset(seed=0)

    def run(steps: int) -> None:
        for _ in range(steps):
            observation, *_ = env.step(env.action_space.sample())
            torch.from_numpy(observation)

    return run


def torchrl_steps(env: Any) -> Callable[[int], None]:
    """Steps of a TorchRL environment."""
    root = env.reset()

    def run(steps: int) -> None:
        nonlocal root
        for _ in range(steps):
            _, root = env.step_and_maybe_reset(env.rand_action(root))

    return run


def compare(name: str, ours: Callable[[int], None], other: Callable[[int], None], goal: float, options: Any) -> None:
    pairs: list[tuple[float, float]] = []
    for _ in range(options.repeats + 1):
        times: list[float] = []
        for run in (ours, other):
            start = time.perf_counter()
            run(options.steps)
            times.append(time.perf_counter() - start)
        pairs.append((times[0], times[1]))
    ratio = statistics.median(right / left for left, right in pairs[1:])
    left, right = (statistics.median(column) / options.steps * 1e6 for column in zip(*pairs[1:], strict=True))
    print(f"{name}: ParallelEnv {left:.0f} us a step, {right:.0f} us; {ratio:.2f} times as fast (goal {goal})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    count = options.envs

    env, serial = ParallelEnv(count, slow, processes=options.processes), SerialEnv(count, slow)
    compare("slow, SerialEnv", leaf_steps(env), leaf_steps(serial), 1.7, options)
    env.close()

    env = ParallelEnv(count, cartpole, processes=options.processes)
    vector = gymnasium.vector.AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * count)
    compare("cartpole, AsyncVectorEnv", leaf_steps(env), vector_steps(vector), 3, options)
    vector.close()
    if importlib.util.find_spec("torchrl") is None:
        print("cartpole, TorchRL's ParallelEnv: torchrl is not installed")
    else:
        import torchrl.envs  # pyright: ignore[reportMissingImports]

        theirs = torchrl.envs.ParallelEnv(count, lambda: torchrl.envs.GymEnv("CartPole-v1"))
        compare("cartpole, TorchRL's ParallelEnv", leaf_steps(env), torchrl_steps(theirs), 10, options)
        theirs.close()
    env.close()


if __name__ == "__main__":
    main()
