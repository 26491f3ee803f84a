"""DQN on CartPole-v1 costs at most 0.7 of the CPU time of Stable-Baselines3's, and no more than a plain loop.

The loop is a single file in the form of CleanRL (`_single_file.py`). Networks have two hidden layers of 64 units; all
take one gradient step for four frames, ours and Stable-Baselines3 16 of them after 64 frames. What counts is the time
of the whole training call: ours contains one evaluation at the end, and writes its metrics and checkpoints. Run:
``python dqn_vs_sb3.py [repetitions] [frames]``.
"""

from __future__ import annotations

import sys
import tempfile

import _single_file
from _sides import compare, with_stable_baselines

FRAMES, RATE, BUFFER, BATCH, STARTS, EVERY, TARGET, EPSILON = 50_000, 1e-3, 50_000, 64, 1_000, 4, 512, 5_000


def ours(seed: int, frames: int = FRAMES) -> None:
    from rl.trainers import DQNConfig, train_dqn

    config = DQNConfig(
        env="CartPole-v1",
        total_frames=frames,
        seed=seed,
        frames_per_batch=64,
        utd_ratio=1 / EVERY,
        batch_size=BATCH,
        buffer_size=BUFFER,
        learning_starts=STARTS,
        learning_rate=RATE,
        double_dqn=False,
        tau=0.0,
        target_every=TARGET,
        annealing_num_steps=EPSILON,
        num_cells=(64, 64),
        eval_every=10**9,  # one evaluation, at the end, is counted
        eval_episodes=1,
        final_eval_episodes=1,
        loggers=("csv",),
    )
    with tempfile.TemporaryDirectory() as folder:
        train_dqn(config, out=f"{folder}/run", display="none")


def single_file(seed: int, frames: int = FRAMES) -> None:
    _single_file.dqn(
        "CartPole-v1",
        seed,
        frames,
        rate=RATE,
        buffer_size=BUFFER,
        batch_size=BATCH,
        learning_starts=STARTS,
        train_every=EVERY,
        target_every=TARGET,
        epsilon_frames=EPSILON,
    )


def stable_baselines(seed: int, frames: int = FRAMES) -> None:
    from stable_baselines3 import DQN

    model = DQN(
        "MlpPolicy",
        "CartPole-v1",
        seed=seed,
        device="cpu",
        learning_rate=RATE,
        buffer_size=BUFFER,
        learning_starts=STARTS,
        batch_size=BATCH,
        train_freq=64,
        gradient_steps=64 // EVERY,
        target_update_interval=TARGET,
        exploration_fraction=min(1.0, EPSILON / frames),
        policy_kwargs={"net_arch": [64, 64]},
    )
    model.learn(frames)


def main(repetitions: int = 3, frames: int = FRAMES) -> dict[str, float]:
    sides = with_stable_baselines({"ours": ours, "single_file": single_file}, stable_baselines)
    return compare(sides, frames, repetitions, warm_up=2048)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
