"""What a step of `GymEnv` costs over the simulator's own, in microseconds of thread time."""

from __future__ import annotations

import statistics
import time

import gymnasium as gym
import torch

from rl.envs import GymEnv

ONE_HOT = [torch.tensor([1, 0]), torch.tensor([0, 1])]


def by_hand(count: int, steps: int) -> float:
    envs = [gym.make("CartPole-v1") for _ in range(count)]
    for index, env in enumerate(envs):
        env.reset(seed=index)
    start = time.thread_time()
    for step in range(steps):
        for env in envs:
            _, _, terminated, truncated, _ = env.step(step & 1)
            if terminated or truncated:
                env.reset()
    return (time.thread_time() - start) / steps * 1e6


def leaves(count: int, steps: int) -> float:
    env = GymEnv("CartPole-v1", num_envs=count) if count > 1 else GymEnv("CartPole-v1")
    env.set_seed(0)
    leaf = env.lowered()
    actions = [one.expand(*env.batch_size, 2).contiguous() for one in ONE_HOT]
    root = leaf.reset_leaves()
    start = time.thread_time()
    for step in range(steps):
        root["action"] = actions[step & 1]
        root = leaf.step_leaves(root)
        if root["done"].any():
            root = leaf.reset_leaves(root, root["done"])
    return (time.thread_time() - start) / steps * 1e6


def main() -> None:
    torch.set_num_threads(1)
    for count, steps in ((1, 20_000), (16, 2_000)):
        rows = [(by_hand(count, steps), leaves(count, steps)) for _ in range(7)]
        gym_cost, ours = (statistics.median(column) for column in zip(*rows, strict=True))
        print(
            f"{count:3d} env: gymnasium {gym_cost:6.1f} us, step_leaves {ours:6.1f} us, over {ours - gym_cost:5.1f} us"
        )


if __name__ == "__main__":
    main()
