"""Base of losses with a temperature: entropy-regularized actor-critic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution

from rl.core.contract import Key
from rl.core.keys import NestedKey
from rl.objectives._batch.mask import mean_of, scalar
from rl.objectives._networks.calls import ActorCall
from rl.objectives.functional import soft_value, temperature_loss
from rl.objectives.functional._regression import reduce
from rl.objectives.losses._temperature import TargetEntropy, action_width, log_bounds
from rl.objectives.losses.actor_critic._base import Batch, OffPolicyLoss, sampled

__all__ = ["SoftLoss"]


class SoftLoss(TargetEntropy, OffPolicyLoss):
    """Base of off-policy losses whose policy has an entropy bonus with a learned temperature; see `SACLoss`."""

    qvalue_network: nn.Module
    target_qvalue_network: nn.Module | None
    log_alpha: Tensor

    def __init__(  # noqa: PLR0913 - the names that users of TorchRL know
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        num_qvalue_nets: int,
        *,
        loss_function: str,
        delay_critic: bool,
        gamma: float,
        reduction: str | None,
        alpha_init: float,
        min_alpha: float | None,
        max_alpha: float | None,
        fixed_alpha: bool,
        target_entropy: float | str,
        delay_actor: bool = False,
        action_spec: Any = None,
    ) -> None:
        super().__init__(
            actor_network,
            qvalue_network,
            num_qvalue_nets,
            loss_function=loss_function,
            delay_critic=delay_critic,
            delay_actor=delay_actor,
            gamma=gamma,
            reduction=reduction,
        )
        self._log_bounds = log_bounds(type(self).__name__, alpha_init, min_alpha, max_alpha, target_entropy)
        self._given_entropy = target_entropy
        spec = getattr(actor_network, "spec", None) if action_spec is None else action_spec
        self._count = action_width(spec, self._keys["action"])
        first = self._to_networks(torch.tensor(math.log(alpha_init)))
        if fixed_alpha:
            self.register_buffer("log_alpha", first)
        else:
            self.register_parameter("log_alpha", nn.Parameter(first))
        self.fixed_alpha = fixed_alpha

    @property
    def alpha(self) -> Tensor:
        """The temperature, without gradient."""
        log_alpha = self.log_alpha.detach()
        return (log_alpha if self._log_bounds is None else log_alpha.clamp(*self._log_bounds)).exp()

    def _derive_actor(self) -> list[NestedKey]:
        self._policy = ActorCall(self.actor_network)
        followed = self.target_actor_network
        self._target_policy = self._policy if followed is None else ActorCall(followed)
        return self._policy.in_keys

    def _combined(self, values: Tensor) -> Tensor:
        """Values of the actor's actions by critic, ``[n, *B, 1]``, of those that the critics write."""
        return values

    def _actor_values(self, batch: Batch, dist: Distribution, action: Any) -> Tensor:
        """Objective of the actor without its entropy: values of its actions by critic, ``[n, *B, 1]``."""
        del dist
        return self._combined(self._values(self._frozen_critic, batch.entries, action, batch.size))

    def _actor_part(self, batch: Batch) -> dict[str, Tensor]:
        dist = self._policy(batch.entries, batch.size)
        action, log_prob = sampled(dist, type(self).__name__)
        soft = soft_value(self._actor_values(batch, dist, action), log_prob, self.alpha)
        return {
            "loss_actor": reduce(-soft.squeeze(-1), self.reduction, batch.mask),
            **self._temperature(log_prob, action, batch),
            "entropy": mean_of(-log_prob.detach(), batch.mask),
            **self._value_part(soft.detach(), batch),
        }

    def _value_part(self, soft: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The loss of a value network that fits the soft values ``[*B, 1]``; there is none by default."""
        del soft, batch
        return {}

    def _writes(self) -> tuple[Key, ...]:
        return (
            scalar("loss_actor", "negative entropy-regularized value of the actor's actions"),
            scalar("loss_alpha", "loss of the temperature"),
            scalar("alpha", "temperature, no gradient"),
            scalar("entropy", "mean negative log-probability of the actor's actions, nats, no gradient"),
        )

    def _automatic_entropy(self, action: Any, log_prob: Tensor) -> float | Tensor:
        """`_entropy_of` the actions of a batch, whose number it notes."""
        leaves: Any = action.values(True, True) if isinstance(action, TensorDictBase) else [action]  # noqa: FBT003
        self._count = sum(leaf.shape[log_prob.ndim :].numel() for leaf in leaves)
        return self._entropy_of(self._count)

    def _temperature(self, log_prob: Tensor, action: Any, batch: Batch) -> dict[str, Tensor]:
        """The loss of the temperature, and its value."""
        target: Any = self._given_entropy
        if target == "auto":
            target = self._automatic_entropy(action, log_prob)
        if self.fixed_alpha:
            elements = torch.zeros_like(log_prob)
        else:
            elements = temperature_loss(self.log_alpha, log_prob, target)
        return {"loss_alpha": reduce(elements, self.reduction, batch.mask), "alpha": self.alpha}
