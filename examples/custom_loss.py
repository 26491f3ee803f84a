"""A loss and a loop of one's own: advantage-weighted regression (Peng et al. 2019) on CartPole-v1.

The loss needs rl-core only: a `Contract` of the keys that it reads and writes, and a ``forward``. The loop steps
the environment with ``rollout`` instead of a collector.
"""

from __future__ import annotations

import argparse

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn

from rl.core import Contract, ExplorationType, Key, check_pipeline, set_exploration_type
from rl.core.arguments import same_shape
from rl.envs import GymEnv
from rl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from rl.objectives.value import TDLambdaEstimator

ROLLOUT_STEPS = 500
EPOCHS = 10
MINIBATCH_SIZE = 256
LEARNING_RATE = 1e-3


class AWRLoss(nn.Module):
    """Advantage-weighted regression: imitate actions, weighted by the exponential of their advantage (eq. 7 and 9).

    Args:
        actor: the trained policy, with ``in_keys`` and ``get_dist``.
        critic: writes ``state_value`` ``[*B, 1]``.
        temperature: scale of the advantage, units of return.
        max_weight: upper bound of a weight.
    """

    def __init__(
        self, actor: ProbabilisticActor, critic: ValueOperator, temperature: float = 1.0, max_weight: float = 20.0
    ) -> None:
        super().__init__()
        self.actor, self.critic, self.temperature, self.max_weight = actor, critic, temperature, max_weight
        self.contract = Contract(
            reads=(
                Key("observation", doc="input of actor and critic"),
                Key("action", doc="action that was taken"),
                Key("advantage", (1,), "advantage of that action", remedy="Run TDLambdaEstimator before."),
                Key("value_target", (1,), "target of the critic"),
            ),
            writes=(
                Key("loss_actor", (), "weighted negative log-likelihood", batched=False),
                Key("loss_critic", (), "squared error of the critic", batched=False),
            ),
        )

    def forward(self, batch: TensorDictBase) -> TensorDict:
        """Compute both losses as scalars."""
        _, action, advantage, target = self.contract.read(batch, self)
        log_prob = self.actor.get_dist(batch.select(*self.actor.in_keys)).log_prob(action)
        advantage = (advantage - advantage.mean()) / advantage.std().clamp_min(1e-6)
        weight = (advantage.squeeze(-1) / self.temperature).exp().clamp_max(self.max_weight)
        value = self.critic(batch.select(*self.critic.in_keys))["state_value"]
        same_shape(weight=weight, log_prob=log_prob)  # never broadcast [B] with [B, 1]
        same_shape(value=value, value_target=target)
        return TensorDict(loss_actor=-(weight * log_prob).mean(), loss_critic=(value - target).pow(2).mean())


def main(total_frames: int, seed: int) -> float:
    """Train, and return the length of the last rollout's mean episode."""
    torch.manual_seed(seed)
    env = GymEnv("CartPole-v1", num_envs=4)
    env.set_seed(seed)
    actor = ProbabilisticActor(
        TensorDictModule(MLP(4, 2, num_cells=[64, 64]), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=OneHotCategorical,
    )
    critic = ValueOperator(MLP(4, 1, num_cells=[64, 64]), in_keys=["observation"])
    estimate = TDLambdaEstimator(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = AWRLoss(actor, critic)
    check_pipeline(env, actor, estimate, loss)
    optimizer = torch.optim.Adam(loss.parameters(), lr=LEARNING_RATE)

    frames, mean_length = 0, float("nan")
    while frames < total_frames:
        with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):  # a collector would sample by itself
            batch = env.rollout(min(ROLLOUT_STEPS, total_frames), actor, break_when_any_done=False)  # [envs, time]
            estimate(batch)
        frames += batch.numel()
        steps = batch.reshape(-1)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(steps)).split(MINIBATCH_SIZE):
                out = loss(steps[rows])
                optimizer.zero_grad()
                (out["loss_actor"] + out["loss_critic"]).backward()
                optimizer.step()
        mean_length = batch.numel() / max(1, int(batch["next", "done"].sum()))
        print(f"{frames:>8} frames  mean episode length {mean_length:6.1f}", flush=True)
    env.close()
    return mean_length


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
