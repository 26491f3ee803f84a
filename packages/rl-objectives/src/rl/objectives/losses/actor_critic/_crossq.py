"""CrossQ: soft actor-critic with batch normalization and without target networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from rl.core.errors import RLError
from rl.objectives import _foreign
from rl.objectives.functional import soft_value
from rl.objectives.losses.actor_critic._base import Batch, sampled
from rl.objectives.losses.actor_critic._soft_loss import SoftLoss

__all__ = ["CrossQLoss"]


@final
@_foreign.off_policy_loss
class CrossQLoss(SoftLoss):
    """CrossQ: soft actor-critic whose critics value both ends of a step in one call, without target networks.

    Bhatt et al., "CrossQ: batch normalization in deep reinforcement learning for greater sample efficiency and
    simplicity", 2024, section 4. Give the critics batch (re)normalization layers: in training mode they see the steps
    and the following ones together. For the actor they are called in evaluation mode.

    Reads and writes what `SACLoss` does without a value network. Padding is not supported, since it would count in the
    normalization.

    Args:
        actor_network: policy with a distribution that has ``rsample``.
        qvalue_network: reads ``action`` and writes ``state_action_value`` ``[*B, 1]``; the other critics are copies
            with new initial parameters. Or a list of critics.
        num_qvalue_nets: number of critics.
        loss_function: ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        alpha_init: first temperature, above 0.
        min_alpha: smallest temperature; None for no bound.
        max_alpha: largest temperature; None for no bound.
        fixed_alpha: keep the first temperature.
        target_entropy: nats, or ``"auto"`` for minus the number of action dimensions.
        gamma: discount, in [0, 1].
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` of the losses over the batch.

    Raises:
        ContractError: if a network lacks a key, or has parameters without a shape.
        SpecError: if an argument is out of its range, or the policy is discrete.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import (
        ...     NormalParamExtractor,
        ...     ProbabilisticTensorDictModule,
        ...     ProbabilisticTensorDictSequential,
        ...     TensorDictModule,
        ... )
        >>> from torch.distributions import Independent, Normal
        >>> body = TensorDictModule(
        ...     nn.Sequential(nn.Linear(3, 4), NormalParamExtractor()), ["observation"], ["loc", "scale"]
        ... )
        >>> head = ProbabilisticTensorDictModule(
        ...     ["loc", "scale"], ["action"], distribution_class=lambda loc, scale: Independent(Normal(loc, scale), 1)
        ... )
        >>> layers = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
        >>> critic = TensorDictModule(layers, ["action"], ["state_action_value"])
        >>> loss = CrossQLoss(ProbabilisticTensorDictSequential(body, head), critic)
        >>> loss.target_qvalue_network is None
        True
    """

    def __init__(  # noqa: PLR0913 - the names that users of TorchRL know
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        *,
        num_qvalue_nets: int = 2,
        loss_function: str = "smooth_l1",
        alpha_init: float = 1.0,
        min_alpha: float | None = None,
        max_alpha: float | None = None,
        fixed_alpha: bool = False,
        target_entropy: float | str = "auto",
        gamma: float = 0.99,
        reduction: str | None = "mean",
        action_spec: Any = None,
    ) -> None:
        super().__init__(
            actor_network,
            qvalue_network,
            num_qvalue_nets,
            loss_function=loss_function,
            delay_critic=False,
            gamma=gamma,
            reduction=reduction,
            alpha_init=alpha_init,
            min_alpha=min_alpha,
            max_alpha=max_alpha,
            fixed_alpha=fixed_alpha,
            target_entropy=target_entropy,
            action_spec=action_spec,
        )

    def _next_value(self, batch: Batch) -> Tensor:
        del batch
        raise RLError("CrossQLoss values both ends of a step in one call")

    def _critic_part(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            action, log_prob = sampled(self._policy(batch.after, batch.size), type(self).__name__)
        after = {**batch.after, **self._acted(action)}
        both = {key: torch.cat([batch.entries[key], after[key]]) for key in self._critic_call.in_keys}
        size = torch.Size((2 * batch.size[0], *batch.size[1:]))
        (value,) = self._critic_call(both, size)
        predicted, following = value.chunk(2, 1)
        with torch.no_grad():
            target = self._target(batch, soft_value(following.detach(), log_prob, self.alpha))
        return self._fit(predicted, target, batch)

    def _actor_part(self, batch: Batch) -> dict[str, Tensor]:
        training = self.qvalue_network.training
        self.qvalue_network.eval()
        try:
            return super()._actor_part(batch)
        finally:
            self.qvalue_network.train(training)
