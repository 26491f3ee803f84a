"""SAC and TD3 on Pendulum-v1 cost at most 0.9 of the CPU time of Stable-Baselines3's, for the same return.

Hyperparameters are the same: two hidden layers of 256 units, one gradient step of 256 transitions for each frame, 64 of
them after 64 frames. What counts is the time of the whole training call: ours contains the evaluation on 10 episodes
that gives the return, and writes its metrics and checkpoints; Stable-Baselines3 is evaluated outside of it.

    python off_policy_vs_sb3.py [--frames 20000] [--repetitions 1] [--only sac]
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from typing import Any

from _sides import compare, with_stable_baselines

ENV, STARTS, EPISODES = "Pendulum-v1", 1_000, 10


def ours(kind: str, seed: int, frames: int) -> float:
    from rl.trainers import SACConfig, TD3Config, train_sac, train_td3

    make, train = {"sac": (SACConfig, train_sac), "td3": (TD3Config, train_td3)}[kind]
    settings: dict[str, Any] = {
        "env": ENV,
        "total_frames": frames,
        "seed": seed,
        "frames_per_batch": 64,
        "learning_starts": STARTS,
        "buffer_size": max(frames, 1_000),
        "eval_every": 10**9,
        "eval_episodes": 1,
        "final_eval_episodes": EPISODES,
        "loggers": ("csv",),
    }
    with tempfile.TemporaryDirectory() as folder:
        return train(make(**settings), out=f"{folder}/run", display="none").eval_return_mean


def stable_baselines(kind: str, models: dict[tuple[int, int], Any], seed: int, frames: int) -> None:
    import numpy as np
    from stable_baselines3 import SAC, TD3
    from stable_baselines3.common.noise import NormalActionNoise

    settings: dict[str, Any] = {
        "seed": seed,
        "device": "cpu",
        "learning_starts": STARTS,
        "buffer_size": max(frames, 1_000),
        "train_freq": 64,
        "gradient_steps": 64,
        "policy_kwargs": {"net_arch": [256, 256]},
    }
    if kind == "td3":
        settings["action_noise"] = NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))
    model = (SAC if kind == "sac" else TD3)("MlpPolicy", ENV, **settings)
    models[seed, frames] = model.learn(frames)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--only", choices=["sac", "td3"])
    arguments = parser.parse_args()
    for kind in ("sac", "td3"):
        if arguments.only not in (None, kind):
            continue
        print(f"\n{kind}")
        models: dict[tuple[int, int], Any] = {}
        sides = with_stable_baselines({"ours": partial(ours, kind)}, partial(stable_baselines, kind, models))
        compare(sides, arguments.frames, arguments.repetitions, warm_up=STARTS + 64)
        for (seed, frames), model in models.items():
            if frames == arguments.frames:
                from stable_baselines3.common.evaluation import evaluate_policy

                mean, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=EPISODES)
                print(f"sb3 seed {seed}: return {mean:.1f}")


if __name__ == "__main__":
    main()
