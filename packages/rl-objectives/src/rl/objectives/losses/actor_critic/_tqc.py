"""Truncated quantile critics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from rl.core.errors import ShapeError, SpecError
from rl.objectives import _foreign
from rl.objectives.functional import quantile_huber, truncated_quantiles
from rl.objectives.losses.actor_critic._base import Batch, sampled
from rl.objectives.losses.actor_critic._soft_loss import SoftLoss

__all__ = ["TQCLoss"]


@final
@_foreign.off_policy_loss
class TQCLoss(SoftLoss):
    """Truncated quantile critics: soft actor-critic whose critics write quantiles, the largest of which are dropped.

    Kuznetsov et al., "Controlling overestimation bias with truncated mixture of continuous distributional quantile
    critics", 2020, eq. 8 to 13.

    Reads and writes what `SACLoss` does without a value network. The critics' loss is the mean over critics and
    quantiles; ``pred_value``, ``target_value`` and ``td_error`` are those of the means of the distributions.

    Args:
        actor_network: policy with a distribution that has ``rsample``.
        qvalue_network: reads ``action`` and writes ``state_action_value`` ``[*B, n_quantiles]``; the other critics are
            copies with new initial parameters. Or a list of critics.
        num_qvalue_nets: number of critics.
        top_quantiles_to_drop_per_net: number of quantiles that the target drops for each critic.
        alpha_init: first temperature, above 0.
        min_alpha: smallest temperature; None for no bound.
        max_alpha: largest temperature; None for no bound.
        fixed_alpha: keep the first temperature.
        target_entropy: nats, or ``"auto"`` for minus the number of action dimensions.
        delay_qvalue: whether next states are valued by a copy, ``target_qvalue_network``.
        gamma: discount, in [0, 1].
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` of the losses over the batch.

    Raises:
        ContractError: if a network lacks a key, or has parameters without a shape.
        SpecError: if an argument is out of its range, or the policy is discrete.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> critic = TensorDictModule(nn.Linear(2, 25), ["action"], ["state_action_value"])
        >>> TQCLoss(TensorDictModule(nn.Linear(1, 1), ["x"], ["y"]), critic, top_quantiles_to_drop_per_net=-1)
        Traceback (most recent call last):
        rl.core.errors.SpecError: TQCLoss got top_quantiles_to_drop_per_net=-1; it is at least 0
    """

    _distributional: ClassVar[bool] = True

    def __init__(  # noqa: PLR0913 - the names that users of TorchRL know
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        *,
        num_qvalue_nets: int = 2,
        top_quantiles_to_drop_per_net: int = 2,
        alpha_init: float = 1.0,
        min_alpha: float | None = None,
        max_alpha: float | None = None,
        fixed_alpha: bool = False,
        target_entropy: float | str = "auto",
        delay_qvalue: bool = True,
        gamma: float = 0.99,
        reduction: str | None = "mean",
        action_spec: Any = None,
    ) -> None:
        if top_quantiles_to_drop_per_net < 0:
            raise SpecError(
                f"TQCLoss got top_quantiles_to_drop_per_net={top_quantiles_to_drop_per_net}; it is at least 0"
            )
        super().__init__(
            actor_network,
            qvalue_network,
            num_qvalue_nets,
            loss_function="smooth_l1",
            delay_critic=delay_qvalue,
            gamma=gamma,
            reduction=reduction,
            alpha_init=alpha_init,
            min_alpha=min_alpha,
            max_alpha=max_alpha,
            fixed_alpha=fixed_alpha,
            target_entropy=target_entropy,
            action_spec=action_spec,
        )
        self.dropped = top_quantiles_to_drop_per_net

    def _next_value(self, batch: Batch) -> Tensor:
        action, log_prob = sampled(self._policy(batch.after, batch.size), type(self).__name__)
        quantiles = self._values(self._target_critic, batch.after, action, batch.size)
        if quantiles.shape[1:-1] != log_prob.shape:
            raise ShapeError(
                f"TQCLoss got quantiles of shape {tuple(quantiles.shape[1:])} and log-probabilities"
                f" {tuple(log_prob.shape)}; expected [*B, n_quantiles] and [*B]"
            )
        return truncated_quantiles(quantiles, self.dropped) - self.alpha * log_prob.unsqueeze(-1)

    def _fit(self, predicted: Tensor, target: Tensor, batch: Batch) -> dict[str, Tensor]:
        count = predicted.shape[-1]
        elements = torch.stack([quantile_huber(one, target) for one in predicted]).mean(0) / count
        means = predicted.detach().mean(-1, keepdim=True)
        return self._weighted(elements, means, target.mean(-1, keepdim=True), batch)

    def _combined(self, values: Tensor) -> Tensor:
        return values.mean(-1, keepdim=True).mean(0, keepdim=True)
