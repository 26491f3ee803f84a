"""Soft actor-critic for discrete actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.objectives import _foreign
from rl.objectives._batch.mask import mean_of
from rl.objectives.functional import expected_soft_value
from rl.objectives.functional._regression import reduce
from rl.objectives.losses.actor_critic._base import Batch, chosen_values
from rl.objectives.losses.actor_critic._soft_loss import SoftLoss

__all__ = ["DiscreteSACLoss"]


@final
@_foreign.off_policy_loss
class DiscreteSACLoss(SoftLoss):
    """Soft actor-critic for discrete actions: expectations over the actions instead of samples.

    Christodoulou, "Soft actor-critic for discrete action settings", 2019, eq. 10 to 12.

    Reads and writes what `SACLoss` does without a value network; ``action`` is one-hot ``[*B, n]`` or integer ``[*B]``.

    Args:
        actor_network: policy with a categorical distribution, which has ``logits``.
        qvalue_network: writes ``action_value`` ``[*B, n]``; the other critics are copies with new initial parameters.
            Or a list of critics.
        num_qvalue_nets: number of critics.
        loss_function: ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        alpha_init: first temperature, above 0.
        min_alpha: smallest temperature; None for no bound.
        max_alpha: largest temperature; None for no bound.
        fixed_alpha: keep the first temperature.
        target_entropy_weight: share of the largest entropy that is the target if `target_entropy` is ``"auto"``.
        target_entropy: nats, or ``"auto"``.
        delay_actor: Whether the next action is that of a copy, ``target_actor_network``, which `SoftUpdate` moves.
        delay_qvalue: whether next states are valued by a copy, ``target_qvalue_network``.
        gamma: discount, in [0, 1].
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` of the losses over the batch.

    Raises:
        ContractError: if a network lacks a key, or has parameters without a shape.
        SpecError: if an argument is out of its range, or the policy is not categorical.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
        >>> head = ProbabilisticTensorDictModule(
        ...     ["logits"], ["action"], distribution_class=torch.distributions.Categorical
        ... )
        >>> body = TensorDictModule(nn.Linear(3, 4), ["observation"], ["logits"])
        >>> critic = TensorDictModule(nn.Linear(3, 4), ["observation"], ["action_value"])
        >>> loss = DiscreteSACLoss(ProbabilisticTensorDictSequential(body, head), critic)
        >>> flag = torch.zeros(8, 1, dtype=torch.bool)
        >>> after = TensorDict(observation=torch.randn(8, 3), reward=torch.ones(8, 1), done=flag, terminated=flag)
        >>> batch = TensorDict(
        ...     observation=torch.randn(8, 3), action=torch.randint(4, (8,)), next=after, batch_size=[8]
        ... )
        >>> out = loss(batch)
        >>> (out["loss_actor"] + out["loss_qvalue"] + out["loss_alpha"]).backward()
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        **{name: key for name, key in SoftLoss.default_keys.items() if name != "state_action_value"},
        "action_value": "action_value",
    }
    _critic_reads: ClassVar[str] = "action_value"

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
        target_entropy_weight: float = 0.98,
        target_entropy: float | str = "auto",
        delay_actor: bool = False,
        delay_qvalue: bool = True,
        gamma: float = 0.99,
        reduction: str | None = "mean",
        action_space: Any = None,
        num_actions: int | None = None,
    ) -> None:
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
            delay_actor=delay_actor,
        )
        del action_space  # of TorchRL: the critics say it
        self._count = num_actions
        self.target_entropy_weight = target_entropy_weight

    def _log_probs(self, dist: Distribution) -> Tensor:
        logits = getattr(dist, "logits", None)
        if logits is None:
            raise SpecError(
                f"DiscreteSACLoss takes the expectation over discrete actions, and {type(dist).__name__} has no logits:"
                " use SACLoss for continuous ones"
            )
        return torch.log_softmax(logits, -1)

    def _predicted(self, batch: Batch) -> Tensor:
        (values,) = self._critic_call(batch.entries, batch.size)
        key = self._keys["action"]
        return chosen_values(values, batch.entries[key], key, type(self).__name__)

    def _next_value(self, batch: Batch) -> Tensor:
        log_probs = self._log_probs(self._target_policy(batch.after, batch.size))
        (values,) = self._target_critic(batch.after, batch.size)
        return expected_soft_value(values, log_probs, self.alpha)

    def _actor_part(self, batch: Batch) -> dict[str, Tensor]:
        log_probs = self._log_probs(self._policy(batch.entries, batch.size))
        (values,) = self._frozen_critic(batch.entries, batch.size)
        soft = expected_soft_value(values.detach(), log_probs, self.alpha)
        expected = expected_soft_value(torch.zeros_like(values), log_probs.detach(), -1.0).squeeze(-1)
        return {
            "loss_actor": reduce(-soft.squeeze(-1), self.reduction, batch.mask),
            **self._temperature(expected, log_probs, batch),
            "entropy": mean_of(-expected, batch.mask),
        }

    def _automatic_entropy(self, action: Any, log_prob: Tensor) -> Tensor:
        """The part `target_entropy_weight` of the largest entropy, that of the legal actions of each element."""
        del log_prob
        self._count = action.shape[-1]
        legal = (
            action.detach() > torch.finfo(action.dtype).min / 2
        )  # masks write minus infinity, or the smallest number
        return self.target_entropy_weight * legal.sum(-1).clamp_min(1).to(action.dtype).log()

    def _entropy_of(self, count: int) -> float:
        """The part `target_entropy_weight` of the largest entropy."""
        return self.target_entropy_weight * math.log(count)
