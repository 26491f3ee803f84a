"""Randomized ensembled double Q-learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from rl.core.errors import SpecError
from rl.objectives import _foreign
from rl.objectives.functional import soft_value
from rl.objectives.losses.actor_critic._base import Batch, sampled
from rl.objectives.losses.actor_critic._soft_loss import SoftLoss

__all__ = ["REDQLoss"]


@final
@_foreign.off_policy_loss
class REDQLoss(SoftLoss):
    """Randomized ensembled double Q-learning: soft actor-critic with many critics and a random subset in the target.

    Chen et al., "Randomized ensembled double Q-learning: learning fast without a model", 2021, algorithm 1. The paper
    takes 20 updates a step.

    Reads and writes what `SACLoss` does without a value network.

    Args:
        actor_network: policy with a distribution that has ``rsample``.
        qvalue_network: reads ``action`` and writes ``state_action_value`` ``[*B, 1]``; the other critics are copies
            with new initial parameters. Or a list of critics.
        num_qvalue_nets: number of critics.
        sub_sample_len: Number of critics whose minimum is the next value, drawn for each batch; all if there are fewer.
        loss_function: ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        alpha_init: first temperature, above 0.
        min_alpha: smallest temperature; None for no bound.
        max_alpha: largest temperature; None for no bound.
        fixed_alpha: keep the first temperature.
        target_entropy: nats, or ``"auto"`` for minus the number of action dimensions.
        delay_actor: Whether the next action is that of a copy, ``target_actor_network``, which `SoftUpdate` moves.
        delay_qvalue: whether next states are valued by a copy, ``target_qvalue_network``.
        gamma: discount, in [0, 1].
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` of the losses over the batch.

    Raises:
        ContractError: if a network lacks a key, or has parameters without a shape.
        SpecError: if an argument is out of its range, or the policy is discrete.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> critic = TensorDictModule(nn.Linear(2, 1), ["action"], ["state_action_value"])
        >>> REDQLoss(TensorDictModule(nn.Linear(1, 1), ["x"], ["y"]), critic, sub_sample_len=0)
        Traceback (most recent call last):
        rl.core.errors.SpecError: REDQLoss got sub_sample_len=0; it is at least 1
    """

    def __init__(  # noqa: PLR0913 - the names that users of TorchRL know
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        *,
        num_qvalue_nets: int = 10,
        sub_sample_len: int = 2,
        loss_function: str = "smooth_l1",
        alpha_init: float = 1.0,
        min_alpha: float | None = None,
        max_alpha: float | None = None,
        fixed_alpha: bool = False,
        target_entropy: float | str = "auto",
        delay_actor: bool = False,
        delay_qvalue: bool = True,
        gamma: float = 0.99,
        reduction: str | None = "mean",
        action_spec: Any = None,
    ) -> None:
        if sub_sample_len < 1:
            raise SpecError(f"REDQLoss got sub_sample_len={sub_sample_len}; it is at least 1")
        super().__init__(
            actor_network,
            qvalue_network,
            num_qvalue_nets,
            loss_function=loss_function,
            delay_critic=delay_qvalue,
            gamma=gamma,
            reduction=reduction,
            alpha_init=alpha_init,
            min_alpha=min_alpha,
            max_alpha=max_alpha,
            fixed_alpha=fixed_alpha,
            target_entropy=target_entropy,
            action_spec=action_spec,
            delay_actor=delay_actor,
        )
        self.num_qvalue_nets, self.sub_sample_len = num_qvalue_nets, sub_sample_len

    def _next_value(self, batch: Batch) -> Tensor:
        action, log_prob = sampled(self._target_policy(batch.after, batch.size), type(self).__name__)
        values = self._values(self._target_critic, batch.after, action, batch.size)
        chosen = torch.randperm(self.num_qvalue_nets, device=values.device)[: self.sub_sample_len]
        return soft_value(values[chosen], log_prob, self.alpha)

    def _combined(self, values: Tensor) -> Tensor:
        return values.mean(0, keepdim=True)
