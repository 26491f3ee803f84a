"""PPO with an LSTM on CartPole-v1 without velocities: ``python recurrent_ppo.py --total-frames 100000``.

The policy sees the cart's position and the pole's angle only, so it has to remember. Minibatches are sequences of 32
steps; each starts from the recurrent state that was stored when it was collected.
"""

from __future__ import annotations

import argparse

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl.collectors import Collector
from rl.envs import Compose, GymEnv, RewardSum, TransformedEnv
from rl.modules import LSTMModule, OneHotCategorical, ProbabilisticActor
from rl.objectives import ClipPPOLoss
from rl.objectives.value import GAE

NUM_ENVS = 8
FRAMES_PER_BATCH = 1024
SEQUENCE_LENGTH = 32
EPOCHS = 10
SEQUENCES_PER_MINIBATCH = 8
LEARNING_RATE = 1e-3
MAX_GRAD_NORM = 0.5


def mask_velocities(step: TensorDictBase) -> TensorDictBase:
    """Set the two velocities of the observation to zero."""
    return step.set("observation", step["observation"] * torch.tensor([1.0, 0.0, 1.0, 0.0]))


def main(total_frames: int, seed: int) -> float:
    """Train, and return the mean return of the episodes that ended in the last batch that had any."""
    torch.manual_seed(seed)
    env = TransformedEnv(GymEnv("CartPole-v1", num_envs=NUM_ENVS), Compose(mask_velocities, RewardSum()))
    env.set_seed(seed)

    memory = LSTMModule(4, 64, in_key="observation", out_key="features")  # one memory for actor and critic
    policy_head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    value_head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    actor = ProbabilisticActor(
        TensorDictSequential(memory, TensorDictModule(policy_head, in_keys=["features"], out_keys=["logits"])),
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = TensorDictSequential(memory, TensorDictModule(value_head, in_keys=["features"], out_keys=["state_value"]))
    advantage = GAE(gamma=0.98, lmbda=0.9, value_network=critic)
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=0.01, normalize_advantage=True)
    optimizer = torch.optim.Adam(loss.parameters(), lr=LEARNING_RATE)

    frames, mean_return = 0, float("nan")
    # The collector starts the recurrent state with each episode and carries it from step to step.
    for batch in Collector(env, actor, frames_per_batch=FRAMES_PER_BATCH, total_frames=total_frames):  # [envs, time]
        frames += batch.numel()
        with torch.no_grad():
            advantage(batch)
        sequences = batch.reshape(-1, SEQUENCE_LENGTH)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(sequences)).split(SEQUENCES_PER_MINIBATCH):  # shuffle sequences, not steps
                out = loss(sequences[rows])
                optimizer.zero_grad()
                (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), MAX_GRAD_NORM)
                optimizer.step()
        returns = batch["next", "episode_reward"][batch["next", "done"]]
        if len(returns):
            mean_return = returns.mean().item()
        print(f"{frames:>8} frames  mean return {mean_return:6.1f}  kl {out['kl_approx'].item():.4f}", flush=True)
    env.close()
    return mean_return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
