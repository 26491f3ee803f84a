"""Claim: eight Pong games with the Atari preset run at 0.8 of the speed of Gymnasium's wrappers, or faster.

The preset steps eight environments in this process with one call; Gymnasium's side wraps each in `AtariPreprocessing`
and `FrameStackObservation` and steps them by `SyncVectorEnv`. Both give 84 x 84 x 4 frames. Interleaved; prints medians
in microseconds a step of all eight and the ratio of the speeds.
"""

from __future__ import annotations

import statistics
import time

import ale_py  # registers the games
import gymnasium
import numpy as np
import torch

from rl.envs import GymEnv, TransformedEnv
from rl.envs.transforms import atari

COPIES, STEPS, ROUNDS = 8, 60, 9


def theirs() -> gymnasium.vector.SyncVectorEnv:
    """Gymnasium's wrappers."""

    def make() -> gymnasium.Env:  # type: ignore[type-arg]
        env = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, obs_type="rgb")
        env = gymnasium.wrappers.AtariPreprocessing(env, terminal_on_life_loss=True)
        return gymnasium.wrappers.FrameStackObservation(env, 4)

    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    return gymnasium.vector.SyncVectorEnv([make] * COPIES, autoreset_mode=mode)


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    gymnasium.register_envs(ale_py)
    games = GymEnv(
        "ALE/Pong-v5",
        num_envs=COPIES,
        categorical_action_encoding=True,
        info_keys=["lives"],
        frameskip=1,
        repeat_action_probability=0.0,
        obs_type="grayscale",
    )
    env = TransformedEnv(games, atari(clip_reward=False))
    leaf = env.lowered()
    root = leaf.reset_leaves()
    raw = theirs()
    raw.reset(seed=0)
    ours: list[float] = []
    others: list[float] = []
    for _ in range(ROUNDS):
        actions = np.random.default_rng(0).integers(6, size=(STEPS, COPIES))
        begin = time.perf_counter()
        for action in torch.from_numpy(actions):
            root["action"] = action
            outcome = leaf.step_leaves(root)
            root = {**root, **outcome}
            del root["reward"]
            if outcome["done"].any():
                root = {**root, **leaf.reset_leaves(root, outcome["done"])}
        middle = time.perf_counter()
        for action in actions:
            raw.step(action)
        ours.append((middle - begin) / STEPS * 1e6)
        others.append((time.perf_counter() - middle) / STEPS * 1e6)
    a, b = statistics.median(ours), statistics.median(others)
    print(f"preset {a:.0f} us a step, Gymnasium {b:.0f} us, ratio of speeds {b / a:.2f}")


if __name__ == "__main__":
    main()
