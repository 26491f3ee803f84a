"""Soft actor-critic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rl.core.contract import Key
from rl.core.keys import NestedKey
from rl.objectives import _foreign
from rl.objectives._batch.mask import scalar
from rl.objectives._networks.calls import NetworkCall
from rl.objectives.functional import soft_value
from rl.objectives.functional._regression import distance, reduce
from rl.objectives.losses.actor_critic._base import Batch, sampled
from rl.objectives.losses.actor_critic._soft_loss import SoftLoss
from rl.objectives.targets._target_networks import make_target

__all__ = ["SACLoss"]


@_foreign.off_policy_loss
class SACLoss(SoftLoss):
    """Soft actor-critic, with an automatic temperature, and optionally with a value network.

    Haarnoja et al., "Soft actor-critic algorithms and applications", 2018, algorithm 1; with `value_network`, "Soft
    actor-critic: off-policy maximum entropy deep reinforcement learning with a stochastic actor", 2018, eq. 5 to 8.

    Reads the inputs of the networks at the root and under ``next``, ``action``, ``("next", "reward")``,
    ``("next", "done")`` and, if there, ``("next", "terminated")`` ``[*B, 1]``, ``priority_weight`` ``[*B]``,
    ``("collector", "mask")`` bool ``[*B]`` and ``gamma`` ``[*B, 1]`` (the discount after `MultiStepTransform`). Returns
    scalars: ``loss_actor``, ``loss_qvalue``, ``loss_alpha`` and, with a value network, ``loss_value``, to be summed and
    minimized, and the detached ``alpha``, ``entropy``, and means of ``td_error`` (absolute), ``pred_value`` and
    ``target_value``. Writes ``td_error`` ``[*B]``, the largest of the critics, into the batch.

    Args:
        actor_network: policy with a distribution that has ``rsample``, such as `TanhNormal`.
        qvalue_network: reads ``action`` and writes ``state_action_value`` ``[*B, 1]``; the other critics are copies
            with new initial parameters. Or a list of critics.
        value_network: writes ``state_value`` ``[*B, 1]``; None for the second form of the paper, which has none.
        num_qvalue_nets: number of critics.
        loss_function: ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        alpha_init: first temperature, above 0.
        min_alpha: smallest temperature; None for no bound.
        max_alpha: largest temperature; None for no bound.
        fixed_alpha: keep the first temperature; ``loss_alpha`` is 0 then.
        target_entropy: nats, or ``"auto"`` for minus the number of action dimensions.
        delay_actor: Whether the next action, and with a value network the action whose value it fits, is that of a
            copy, ``target_actor_network``, which `SoftUpdate` moves.
        delay_qvalue: whether next states are valued by a copy, ``target_qvalue_network``, without a value network.
        delay_value: the same for a value network, ``target_value_network``.
        gamma: discount, in [0, 1].
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` of the losses over the batch.

    Raises:
        ContractError: if a network lacks a key, or has parameters without a shape.
        SpecError: if an argument is out of its range, or the policy is discrete.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import (
        ...     NormalParamExtractor,
        ...     ProbabilisticTensorDictModule,
        ...     ProbabilisticTensorDictSequential,
        ...     TensorDictModule,
        ...     TensorDictSequential,
        ... )
        >>> from torch.distributions import Independent, Normal
        >>> body = nn.Sequential(nn.Linear(3, 4), NormalParamExtractor())
        >>> head = ProbabilisticTensorDictModule(
        ...     ["loc", "scale"], ["action"], distribution_class=lambda loc, scale: Independent(Normal(loc, scale), 1)
        ... )
        >>> actor = ProbabilisticTensorDictSequential(TensorDictModule(body, ["observation"], ["loc", "scale"]), head)
        >>> both = TensorDictModule(lambda x, a: torch.cat([x, a], -1), ["observation", "action"], ["both"])
        >>> critic = TensorDictSequential(both, TensorDictModule(nn.Linear(5, 1), ["both"], ["state_action_value"]))
        >>> loss = SACLoss(actor, critic)
        >>> flag = torch.zeros(8, 1, dtype=torch.bool)
        >>> after = TensorDict(observation=torch.randn(8, 3), reward=torch.ones(8, 1), done=flag, terminated=flag)
        >>> batch = TensorDict(observation=torch.randn(8, 3), action=torch.randn(8, 2), next=after, batch_size=[8])
        >>> out = loss(batch)
        >>> (out["loss_actor"] + out["loss_qvalue"] + out["loss_alpha"]).backward()
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {**SoftLoss.default_keys, "value": "state_value"}

    value_network: nn.Module | None
    target_value_network: nn.Module | None

    def __init__(  # noqa: PLR0913 - the names that users of TorchRL know
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        value_network: nn.Module | None = None,
        *,
        num_qvalue_nets: int = 2,
        loss_function: str = "smooth_l1",
        alpha_init: float = 1.0,
        min_alpha: float | None = None,
        max_alpha: float | None = None,
        fixed_alpha: bool = False,
        target_entropy: float | str = "auto",
        delay_actor: bool = False,
        delay_qvalue: bool = True,
        delay_value: bool = True,
        gamma: float = 0.99,
        reduction: str | None = "mean",
        action_spec: Any = None,
    ) -> None:
        super().__init__(
            actor_network,
            qvalue_network,
            num_qvalue_nets,
            loss_function=loss_function,
            delay_critic=delay_qvalue and value_network is None,
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
        self.value_network, self.delay_value = value_network, delay_value
        if value_network is None or not delay_value:
            self.target_value_network = None
        else:
            self.target_value_network = make_target(value_network, type(self).__name__)
        self.derive_early()

    def _derive_actor(self) -> list[NestedKey]:
        inputs = super()._derive_actor()
        network = getattr(self, "value_network", None)  # set after the first derivation
        self._value = None if network is None else NetworkCall(network, {"value": self._keys["value"]})
        if self._value is None:
            return inputs
        followed = self.target_value_network or self.value_network
        self._target_value = NetworkCall(followed, {"value": self._keys["value"]})
        return [*inputs, *self._value.in_keys]

    def _writes(self) -> tuple[Key, ...]:
        value = () if self._value is None else (scalar("loss_value", "distance of values and soft values"),)
        return (*super()._writes(), *value)

    def _next_value(self, batch: Batch) -> Tensor:
        if self._value is not None:
            return self._target_value(batch.after, batch.size)[0]
        action, log_prob = sampled(self._target_policy(batch.after, batch.size), type(self).__name__)
        return soft_value(self._values(self._target_critic, batch.after, action, batch.size), log_prob, self.alpha)

    def _value_part(self, soft: Tensor, batch: Batch) -> dict[str, Tensor]:
        if self._value is None:
            return {}
        if self._target_policy is not self._policy:
            with torch.no_grad():
                action, log_prob = sampled(self._target_policy(batch.entries, batch.size), type(self).__name__)
                soft = soft_value(
                    self._values(self._critic_call, batch.entries, action, batch.size), log_prob, self.alpha
                )
        (value,) = self._value(batch.entries, batch.size)
        elements = distance(value, soft, self.loss_function).squeeze(-1)
        return {"loss_value": reduce(elements, self.reduction, batch.mask)}
