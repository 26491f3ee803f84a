"""PPO on CartPole-v1 to 50,000 frames: this package against Stable-Baselines3, same hyperparameters.

Both sides run in one process with one torch thread, interleaved. What counts is the time of the whole training call,
with neither side evaluating. Run: ``python ppo_vs_sb3.py [repetitions]``.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch

FRAMES = 50_000


def ours(seed: int, frames: int = FRAMES) -> None:
    from rl.trainers import PPOConfig, train_ppo

    config = PPOConfig(
        env="CartPole-v1",
        total_frames=frames,
        seed=seed,
        num_envs=1,
        frames_per_batch=2048,
        epochs=10,
        minibatch_size=64,
        learning_rate=3e-4,
        anneal=False,
        gamma=0.99,
        gae_lambda=0.95,
        clip=0.2,
        value_weight=0.5,
        entropy_weight=0.0,
        max_grad_norm=0.5,
        hidden=(64, 64),
        activation="tanh",
        eval_every=10**9,  # one evaluation, at the end, is counted
        eval_episodes=1,
        final_eval_episodes=1,
        loggers=("csv",),
    )
    with tempfile.TemporaryDirectory() as folder:
        train_ppo(config, out=f"{folder}/run", display="none")


def stable_baselines(seed: int, frames: int = FRAMES) -> None:
    from stable_baselines3 import PPO

    PPO("MlpPolicy", "CartPole-v1", seed=seed, device="cpu", verbose=0).learn(frames)


def measure(train: Callable[[int], None], seed: int) -> tuple[float, float]:
    """Wall seconds and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    train(seed)
    return time.perf_counter() - wall, time.process_time() - cpu


def main(repetitions: int = 3) -> dict[str, float]:
    torch.set_num_threads(1)
    ours(seed=0, frames=2048)  # what is imported on first use is no part of either side
    stable_baselines(seed=0, frames=2048)
    sides: dict[str, Callable[[int], None]] = {"ours": ours, "sb3": stable_baselines}
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for seed in range(repetitions):
        for name, train in sides.items():
            results[name].append(measure(train, seed))
            print(
                f"{name:<5} seed {seed}: wall {results[name][-1][0]:.1f} s, CPU {results[name][-1][1]:.1f} s",
                flush=True,
            )
    out: dict[str, float] = {}
    for i, clock in enumerate(("wall", "cpu")):
        for name in sides:
            out[f"{name}_{clock}_seconds"] = round(statistics.median(pair[i] for pair in results[name]), 2)
        ratios = [a[i] / b[i] for a, b in zip(results["ours"], results["sb3"], strict=True)]
        out[f"{clock}_ratio"] = round(statistics.median(ratios), 3)
    print(json.dumps(out))
    return out


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
