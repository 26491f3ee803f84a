"""Claim: a random rollout of CartPole takes at most the time of a plain loop that stores the same arrays.

Both take 1,000 steps, interleaved: `GymEnv.rollout`, and a loop that samples an action, steps, resets at the end of an
episode, and stacks observations, actions, rewards and flags of both ends of each step into tensors. Prints medians in
microseconds a step and the ratio of the speeds.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import gymnasium
import numpy as np
import torch

from rl.envs import GymEnv

STEPS, ROUNDS = 1000, 15


def raw(env: Any) -> dict[str, torch.Tensor]:
    """The entries of a rollout by a plain loop."""
    names = ("observation", "action", "next_observation", "reward", "done", "terminated", "truncated")
    rows: dict[str, list[Any]] = {name: [] for name in names}
    hot = np.eye(2, dtype=np.int64)
    observation, _ = env.reset()
    for _ in range(STEPS):
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        done = terminated or truncated
        values = (observation, hot[action], following, (reward,), (done,), (terminated,), (truncated,))
        for name, value in zip(names, values, strict=True):
            rows[name].append(value)
        observation = env.reset()[0] if done else following
    out = {name: torch.from_numpy(np.array(values)) for name, values in rows.items()}
    out["reward"] = out["reward"].float()
    for name in ("done", "terminated", "truncated"):  # the flags at the root
        out[f"root_{name}"] = torch.zeros_like(out["done"])
    return out


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    env, plain = GymEnv("CartPole-v1"), gymnasium.make("CartPole-v1")
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        env.rollout(STEPS, break_when_any_done=False)
        middle = time.perf_counter()
        raw(plain)
        ours.append((middle - begin) / STEPS * 1e6)
        theirs.append((time.perf_counter() - middle) / STEPS * 1e6)
    a, b = statistics.median(ours), statistics.median(theirs)
    print(f"rollout {a:.1f} us a step, plain loop {b:.1f} us, ratio of speeds {b / a:.2f}")


if __name__ == "__main__":
    main()
