"""Intrinsic rewards of random network distillation, and the critic of their returns."""

from __future__ import annotations

from functools import partial

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl.core.interfaces import Env
from rl.core.keys import NEXT, NestedKey, as_tuple
from rl.modules import RunningValueNorm
from rl.objectives import RNDLoss
from rl.objectives.functional import ReturnScale, scale_by_returns, vec_generalized_advantage_estimate
from rl.trainers._build.networks import network, observations_of, readings_of
from rl.trainers.recipes.ppo_rnd._config import PPORNDConfig

__all__ = ["TARGET", "IntrinsicReward"]

#: limit of normalized observations; Burda et al., 2018, section 2.4
LIMIT = 5.0

#: key of the targets of the intrinsic critic
TARGET = "intrinsic_value_target"


class IntrinsicReward(nn.Module):
    """Predictor and random network, their normalization, and the critic of intrinsic returns.

    Its state has everything that a resumed run needs.

    Args:
        config: widths, weights and discount.
        env: decides the inputs.
    """

    returns: Tensor
    seen: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, config: PPORNDConfig, env: Env) -> None:
        super().__init__()
        self._config = config
        layout, device, batch = config.observation_layout, config.device, len(env.batch_size)
        make = partial(network, env, activation="relu", layout=layout, device=device)
        specs = observations_of(env)
        #: normalized observations, by key of the observation
        self.keys: dict[NestedKey, NestedKey] = {key: ("normalized", *as_tuple(key)) for key in specs}
        self._read: dict[NestedKey, RunningValueNorm] = {}
        self.norms = nn.ModuleList()
        for key, how in readings_of(env, layout).items():
            if how != "index":
                norm = RunningValueNorm(list(specs[key].shape[batch:]), epsilon=1e-8, device=device)
                self._read[key] = norm
                self.norms.append(norm)
        rnd = partial(make, out_features=config.features, last_gain=2**0.5, scale_bytes=False)
        hidden = config.hidden
        networks = [
            TensorDictModule(rnd(hidden=widths), in_keys=list(self.keys.values()), out_keys=["features"])
            for widths in ((*hidden, *hidden[-1:]), hidden)  # the predictor has a layer more
        ]
        self.loss = RNDLoss(*networks)
        value = make(out_features=1, hidden=hidden, last_gain=1.0)
        self.critic = TensorDictModule(value, in_keys=list(specs), out_keys=["intrinsic_value"])
        self.register_buffer("returns", torch.zeros(*env.batch_size, 1, device=device))
        for name in ("seen", "mean", "squares"):
            self.register_buffer(name, torch.zeros((), device=device))

    def reward(self, batch: TensorDictBase) -> Tensor:
        """Scaled intrinsic reward of each step, ``[*B, T, 1]``.

        Updates all statistics, and writes normalized observations under ``("next", "normalized")``.
        """
        for key, normalized in self.keys.items():
            value, norm = batch.get((NEXT, *as_tuple(key))), self._read.get(key)
            if norm is not None:
                norm.update(value)
                value = norm.normalize(value).clamp(-LIMIT, LIMIT)
            batch.set((NEXT, *as_tuple(normalized)), value)
        scale = ReturnScale(self.returns, self.seen, self.mean, self.squares)
        reward, scale = scale_by_returns(self.loss.intrinsic_reward(batch), scale, gamma=self._config.intrinsic_gamma)
        self.returns, self.seen, self.mean, self.squares = scale
        return reward

    def advantage(self, batch: TensorDictBase, reward: Tensor) -> tuple[Tensor, Tensor]:
        """Advantage and value target of intrinsic rewards, ``[*B, T, 1]``; episodes do not end for them."""
        value = self.value(batch)
        last = self.value(batch[..., -1:].get(NEXT))
        never = torch.zeros_like(reward, dtype=torch.bool)
        return vec_generalized_advantage_estimate(
            self._config.intrinsic_gamma,
            self._config.gae_lambda,
            value,
            torch.cat((value[..., 1:, :], last), -2),  # the state after a reset follows the last one
            reward,
            never,
            never,
        )

    def value(self, batch: TensorDictBase) -> Tensor:
        """Intrinsic value of each state, ``[*B, 1]``."""
        return self.critic(batch.select(*self.critic.in_keys)).get("intrinsic_value")
