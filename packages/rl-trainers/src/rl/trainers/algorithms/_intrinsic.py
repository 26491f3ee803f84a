"""Random network distillation: intrinsic rewards, the critic of their returns, and gradient steps with both."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl.core.interfaces import Env
from rl.core.keys import ADVANTAGE, NEXT, NestedKey, as_tuple
from rl.modules import RunningValueNorm
from rl.objectives import ClipPPOLoss, RNDLoss
from rl.objectives.functional import ReturnScale, scale_by_returns, vec_generalized_advantage_estimate
from rl.objectives.value import GAE
from rl.trainers._device import float_outputs
from rl.trainers.loops.updater import MinibatchUpdater, Updater, adam
from rl.trainers.networks import network, observations_of, readings_of

#: limit of normalized observations; Burda et al., 2018, section 2.4
LIMIT = 5.0

#: key of the targets of the intrinsic critic
TARGET = "intrinsic_value_target"


class IntrinsicReward(nn.Module):
    """Predictor and random network, their normalization, and the critic of intrinsic returns.

    Its state has everything that a resumed run needs.

    Args:
        config: Widths, weights and discount.
        env: Environment, which decides the inputs.
    """

    returns: Tensor
    seen: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, config: Any, env: Env) -> None:
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
        # the last layer has the gain of the hidden ones: features are no outputs of actor or critic
        rnd = partial(make, out_features=config.features, last_gain=2**0.5, scale_bytes=False)
        hidden = config.num_cells
        networks = [
            TensorDictModule(rnd(num_cells=widths), in_keys=list(self.keys.values()), out_keys=["features"])
            for widths in ((*hidden, *hidden[-1:]), hidden)  # the predictor has a layer more
        ]
        self.loss = RNDLoss(*networks)
        value = make(out_features=1, num_cells=hidden, last_gain=1.0)
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
                norm.update(value)  # before it is used: the statistics include this batch
                value = norm.normalize(value).clamp(-LIMIT, LIMIT)
            batch.set((NEXT, *as_tuple(normalized)), value)
        scale = ReturnScale(self.returns, self.seen, self.mean, self.squares)
        reward, scale = scale_by_returns(self.loss.intrinsic_reward(batch), scale, gamma=self._config.intrinsic_gamma)
        self.returns, self.seen, self.mean, self.squares = scale
        return reward

    def advantage(self, batch: TensorDictBase, reward: Tensor) -> tuple[Tensor, Tensor]:
        """Advantage and value target of intrinsic rewards, ``[*B, T, 1]``; episodes do not end for them."""
        value = self.value(batch)  # [*B, T, 1]
        last = self.value(batch[..., -1:].get(NEXT))  # [*B, 1, 1]
        never = torch.zeros_like(reward, dtype=torch.bool)
        return vec_generalized_advantage_estimate(
            self._config.intrinsic_gamma,
            self._config.lmbda,
            value,
            torch.cat((value[..., 1:, :], last), -2),  # the state after a reset follows the last one
            reward,
            never,
            never,
        )

    def value(self, batch: TensorDictBase) -> Tensor:
        """Intrinsic value of each state, ``[*B, 1]``."""
        return self.critic(batch.select(*self.critic.in_keys)).get("intrinsic_value")


class RNDUpdater(MinibatchUpdater):
    """PPO on the sum of extrinsic and intrinsic advantages; each step also trains predictor and intrinsic critic.

    Args:
        config: Settings.
        env: Environment, which decides the inputs of the predictor.
        actor: The policy.
        critic: Critic of the environment's rewards.
    """

    adds = (TARGET, "normalized")

    def __init__(self, config: Any, env: Env, actor: Any, critic: Any) -> None:
        self._rnd = rnd = IntrinsicReward(config, env)
        super().__init__(
            config,
            partial(ClipPPOLoss, actor, critic, **config.loss_settings),
            GAE(gamma=config.gamma, lmbda=config.lmbda, value_network=critic),
            more=rnd.critic.parameters(),
            reads=[TARGET, *((NEXT, *as_tuple(key)) for key in rnd.keys.values())],
        )
        float_outputs(config, rnd)
        optimizer = adam(rnd.loss.parameters(), config.predictor_learning_rate)
        self._predictor = Updater(config, rnd.loss, [optimizer], {"loss_predictor": "loss_predictor"})
        self._extrinsic, self.estimate = self.estimate, self._estimate_advantages
        self._reward: Any = None
        self.parts |= {"rnd": rnd, "predictor_optimizer": optimizer}
        self.metrics = (
            *(name for name in self.metrics if name != "explained_variance"),
            "loss_predictor",
            "intrinsic_reward",
        )

    def _estimate_advantages(self, batch: TensorDictBase) -> TensorDictBase:
        assert self._extrinsic is not None
        batch = self._extrinsic(batch)
        self._reward = self._rnd.reward(batch)
        advantage, target = self._rnd.advantage(batch, self._reward)
        config = self.config
        batch.set(ADVANTAGE, config.extrinsic_weight * batch.get(ADVANTAGE) + config.intrinsic_weight * advantage)
        return batch.set(TARGET, target)

    def learn(self, out: Any, minibatch: TensorDict) -> tuple[Any, Tensor | None]:
        """One gradient step of the predictor, and one of the actor and both critics."""
        error = self._predictor.forward(self._rnd.loss, minibatch)
        self._predictor.step(error)
        value = self.forward(self._rnd.value, minibatch)
        loss_intrinsic = (value - minibatch.get(TARGET)).square().mean()
        out.set("loss_predictor", error.get("loss_predictor").detach()).set("loss_intrinsic", loss_intrinsic)
        return super().learn(out, minibatch)

    def total(self, out: Any) -> Tensor:
        """Add the loss of the intrinsic critic to that of PPO."""
        return super().total(out) + self.config.critic_coeff * out.get("loss_intrinsic")

    def means(self, seen: Any) -> dict[str, float]:
        """Also the loss of the predictor."""
        return {**super().means(seen), **self._predictor.means(seen)}

    def diagnostics(self, rows: Mapping[NestedKey, Tensor]) -> dict[str, float]:
        """Return the mean intrinsic reward."""
        del rows
        return {"intrinsic_reward": float(self._reward.mean())}
