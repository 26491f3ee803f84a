"""PPO on CartPole-v1 costs at most half of the CPU time of Stable-Baselines3's, and no more than a plain loop.

The loop is a single file in the form of CleanRL (`_single_file.py`). Networks have two hidden layers of 64 units;
hyperparameters are the same. What counts is the time of the whole training call: ours contains one evaluation at the
end, and writes its metrics and checkpoints. Run: ``python ppo_vs_sb3.py [repetitions] [frames]
[native]``; with ``native`` rl-native computes our policy.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial

import _single_file
from _sides import compare, with_stable_baselines

FRAMES = 50_000


def ours(seed: int, frames: int = FRAMES, backend: str = "torch") -> None:
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
        anneal_lr=False,
        gamma=0.99,
        lmbda=0.95,
        clip_epsilon=0.2,
        critic_coeff=0.5,
        entropy_coeff=0.0,
        max_grad_norm=0.5,
        num_cells=(64, 64),
        activation="tanh",
        eval_every=10**9,  # one evaluation, at the end, is counted
        eval_episodes=1,
        final_eval_episodes=1,
        loggers=("csv",),
        policy_backend=backend,
    )
    with tempfile.TemporaryDirectory() as folder:
        train_ppo(config, out=f"{folder}/run", display="none")


def single_file(seed: int, frames: int = FRAMES) -> None:
    _single_file.ppo("CartPole-v1", seed, frames)


def stable_baselines(seed: int, frames: int = FRAMES) -> None:
    from stable_baselines3 import PPO

    PPO("MlpPolicy", "CartPole-v1", seed=seed, device="cpu", verbose=0).learn(frames)


def main(repetitions: int = 3, frames: int = FRAMES, backend: str = "torch") -> dict[str, float]:
    sides = with_stable_baselines(
        {"ours": partial(ours, backend=backend), "single_file": single_file}, stable_baselines
    )
    return compare(sides, frames, repetitions, warm_up=2048)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
