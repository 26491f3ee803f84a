"""A training loop with all that recipes have: ``python own_loop.py``, which continues after it was killed.

Deep Q-learning on CartPole-v1; the lines marked with * are the algorithm.
"""

from __future__ import annotations

import argparse

import torch
from tensordict.nn import TensorDictSequential as Seq

from rl.collectors import Collector
from rl.envs import GymEnv
from rl.modules import MLP, EGreedyModule, QValueActor
from rl.objectives import DQNLoss, SoftUpdate
from rl.replay import LazyTensorStorage, ReplayBuffer
from rl.trainers import Checkpoint, Evaluator, get_logger, make_display

EVERY = 2_048  # frames between evaluations, rows of metrics and checkpoints
GOAL = 475.0  # return at which it ends


def make_env(count: int, seed: int) -> GymEnv:
    """Create environments, for training and for evaluations."""
    env = GymEnv("CartPole-v1", num_envs=count)
    env.set_seed(seed)
    return env


def main(total_frames: int, seed: int, out: str = "own-loop") -> float:
    """Train, and return the mean return of the last evaluation."""
    torch.manual_seed(seed)
    env = make_env(8, seed)
    net = MLP(4, 2, num_cells=[128, 128])  # *
    policy = QValueActor(net, in_keys=["observation"], spec=env.action_spec)  # *
    explore = EGreedyModule(env.action_spec, eps_end=0.05, annealing_num_steps=10_000)  # *
    loss = DQNLoss(policy, double_dqn=True, gamma=0.99)  # *
    target = SoftUpdate(loss, tau=0.01)  # *
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)  # *
    buffer = ReplayBuffer(storage=LazyTensorStorage(50_000), batch_size=128)
    collector = Collector(env, Seq(policy, explore), frames_per_batch=128)
    evaluator = Evaluator(make_env, policy)
    parts = {"policy": policy, "loss": loss, "explore": explore, "optimizer": optimizer}
    parts |= {"collector": collector, "buffer": buffer}
    checkpoint = Checkpoint(f"{out}/checkpoints", parts, keep_last=2, best="return_mean")
    frames, return_mean = 0, float("nan")
    if checkpoint.exists():
        report = checkpoint.load()
        frames, return_mean = report.frames, report.values["return_mean"]
    logger = get_logger("csv", out, resume_step=frames or None)
    display = make_display()
    display.start(f"DQN on CartPole-v1: {out}", total_frames, frames)

    while frames < total_frames and not return_mean >= GOAL:
        batch = collector.collect()  # [envs, time]
        frames += batch.numel()
        explore.step(batch.numel())  # *
        buffer.extend(batch.reshape(-1))
        for _ in range(16 if len(buffer) >= 1_000 else 0):
            optimizer.zero_grad()
            loss(buffer.sample())["loss"].backward()  # *
            optimizer.step()
            target.step()  # *
        if frames % EVERY == 0 or frames >= total_frames:
            return_mean = evaluator.run(10, seed=seed).mean().item()
            row = {"eval/return_mean": return_mean, "epsilon": explore.eps.item()}
            logger.log_scalars(row, frames)
            display.update(frames, row, {})
            checkpoint.save(frames, return_mean=return_mean)

    display.note(f"{frames} frames: {return_mean:.1f}; the best policy: {checkpoint.best}")
    for part in (display.stop, logger.close, evaluator.close, collector.shutdown):
        part()
    return return_mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-frames", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="own-loop", help="folder, in which it continues")
    main(**vars(parser.parse_args()))
