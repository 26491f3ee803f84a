"""Claim: a step of 4,096 copies of an environment in torch costs less than the small policy that acts in them.

Each environment takes 30 steps of random actions in its leaf form, as collectors step it, without resets; the other
side is a network of 2 x 64 units on as many observations. Both are interleaved, on one CPU core. Prints medians of CPU
time as million frames a second of each side, and the ratio of a step to the policy.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

from rl import envs

COPIES, STEPS, ROUNDS = 4096, 30, 9
NAMES = (
    "CartPoleEnv",
    "PendulumEnv",
    "MountainCarEnv",
    "AcrobotEnv",
    "GridWorldEnv",
    "SnakeEnv",
    "BreakoutEnv",
    "Game2048Env",
    "DoorKeyEnv",
)


def main() -> None:
    torch.set_num_threads(1)
    for name in NAMES:
        env = getattr(envs, name)([COPIES], seed=0)
        leaf, root, actions = env.lowered(), env.reset().to_dict(), env.action_spec.rand((STEPS,))
        observation = root["observation"].float()
        policy = nn.Sequential(nn.Linear(observation.shape[-1], 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(ROUNDS):
            state = root
            begin = time.process_time()
            for action in actions:
                state = leaf.step_leaves({**state, "action": action})
            middle = time.process_time()
            with torch.inference_mode():
                for _ in actions:
                    policy(observation)
            ours.append((middle - begin) / STEPS)
            theirs.append((time.process_time() - middle) / STEPS)
        a, b = statistics.median(ours), statistics.median(theirs)
        print(f"{name}: {COPIES / a / 1e6:.1f} M frames/s, policy {COPIES / b / 1e6:.1f}, ratio {a / b:.2f}")


if __name__ == "__main__":
    main()
