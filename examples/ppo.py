"""Proximal policy optimization on CartPole-v1 (Schulman et al. 2017): ``python ppo.py --total-frames 100000``."""

from __future__ import annotations

import argparse

import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl.collectors import Collector
from rl.core import check_pipeline
from rl.envs import GymEnv, RewardSum, TransformedEnv
from rl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from rl.objectives import ClipPPOLoss
from rl.objectives.value import GAE

NUM_ENVS = 8
FRAMES_PER_BATCH = 1024
EPOCHS = 10
MINIBATCH_SIZE = 256
LEARNING_RATE = 1e-3
MAX_GRAD_NORM = 0.5


def main(total_frames: int, seed: int) -> float:
    """Train, and return the mean return of the episodes that ended in the last batch that had any."""
    torch.manual_seed(seed)
    env = TransformedEnv(GymEnv("CartPole-v1", num_envs=NUM_ENVS), RewardSum())  # RewardSum writes "episode_reward"
    env.set_seed(seed)
    observations, actions = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]

    def network(outputs: int) -> nn.Module:
        return MLP(observations, outputs, num_cells=[64, 64], activation_class=nn.Tanh)

    actor = ProbabilisticActor(
        TensorDictModule(network(actions), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,  # the loss compares it with the log-probability under the updated policy
    )
    critic = ValueOperator(network(1), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=0.01, normalize_advantage=True)
    check_pipeline(env, actor, advantage, loss)  # raises if a key is read that nothing writes
    optimizer = torch.optim.Adam(loss.parameters(), lr=LEARNING_RATE)

    frames, mean_return = 0, float("nan")
    for batch in Collector(env, actor, frames_per_batch=FRAMES_PER_BATCH, total_frames=total_frames):  # [envs, time]
        frames += batch.numel()
        with torch.no_grad():
            advantage(batch)  # before shuffling: it needs the order of time
        steps = batch.reshape(-1)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(steps)).split(MINIBATCH_SIZE):
                out = loss(steps[rows])
                optimizer.zero_grad()
                (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), MAX_GRAD_NORM)
                optimizer.step()
        returns = batch["next", "episode_reward"][batch["next", "done"]]
        if len(returns):
            mean_return = returns.mean().item()
        print(f"{frames:>8} frames  mean return {mean_return:6.1f}  entropy {out['entropy'].item():.2f}", flush=True)
    env.close()
    return mean_return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
