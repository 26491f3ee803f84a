"""Deep Q-learning on CartPole-v1 (Mnih et al. 2015; double, prioritized): ``python dqn.py --total-frames 50000``."""

from __future__ import annotations

import argparse

import torch
from tensordict.nn import TensorDictSequential
from torch import nn

from rl.collectors import Collector
from rl.core import check_pipeline
from rl.envs import GymEnv, RewardSum, TransformedEnv
from rl.modules import MLP, EGreedyModule, QValueActor
from rl.objectives import DQNLoss, SoftUpdate
from rl.replay import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

NUM_ENVS = 8
FRAMES_PER_BATCH = 128
UPDATES_PER_BATCH = 16
LEARNING_STARTS = 1_000
BATCH_SIZE = 128
LEARNING_RATE = 1e-3
MAX_GRAD_NORM = 10.0


def main(total_frames: int, seed: int) -> float:
    """Train, and return the mean return of the last episodes that ended."""
    torch.manual_seed(seed)
    env = TransformedEnv(GymEnv("CartPole-v1", num_envs=NUM_ENVS), RewardSum())
    env.set_seed(seed)
    observations, actions = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]

    policy = QValueActor(
        MLP(observations, actions, num_cells=[128, 128]), in_keys=["observation"], spec=env.action_spec
    )
    explore = EGreedyModule(env.action_spec, eps_init=1.0, eps_end=0.05, annealing_num_steps=total_frames // 4)
    loss = DQNLoss(policy, double_dqn=True, loss_function="smooth_l1", gamma=0.99)
    target = SoftUpdate(loss, tau=0.01)
    check_pipeline(env, policy, loss)
    optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE)
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.6, beta=0.4, storage=LazyTensorStorage(50_000), batch_size=BATCH_SIZE
    )

    frames, mean_return = 0, float("nan")
    collector = Collector(
        env, TensorDictSequential(policy, explore), frames_per_batch=FRAMES_PER_BATCH, total_frames=total_frames
    )
    for batch in collector:  # [envs, time]
        frames += batch.numel()
        explore.step(batch.numel())
        buffer.extend(batch.reshape(-1))
        if len(buffer) >= LEARNING_STARTS:
            for _ in range(UPDATES_PER_BATCH):
                sample = buffer.sample()
                value = loss(sample)["loss"]  # weighted by the sampler's importance weights; writes "td_error"
                optimizer.zero_grad()
                value.backward()
                nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRAD_NORM)
                optimizer.step()
                target.step()
                buffer.update_tensordict_priority(sample)
        returns = batch["next", "episode_reward"][batch["next", "done"]]
        if len(returns):
            mean_return = returns.mean().item()
        if frames % 2048 < FRAMES_PER_BATCH:
            print(f"{frames:>8} frames  mean return {mean_return:6.1f}  epsilon {explore.eps.item():.2f}", flush=True)
    env.close()
    return mean_return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-frames", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
