"""Implicit Q-learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from rl.core.contract import Key
from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.objectives import _foreign
from rl.objectives._batch.mask import mean_of, scalar
from rl.objectives._networks.calls import ActorCall, NetworkCall
from rl.objectives._networks.composite import joint, taken
from rl.objectives.functional import advantage_weight, expectile_loss
from rl.objectives.functional._regression import is_number, reduce
from rl.objectives.losses.actor_critic._base import Batch, OffPolicyLoss, chosen_values
from rl.objectives.losses.policy_gradient._base import weighted_entropy

__all__ = ["DiscreteIQLLoss", "IQLLoss"]


@_foreign.off_policy_loss
class IQLLoss(OffPolicyLoss):
    """Implicit Q-learning: values of the better actions of a data set, without values of other actions.

    Kostrikov et al., "Offline reinforcement learning with implicit Q-learning", 2022, eq. 5 to 7.

    Reads the inputs of the networks, those of the value network also under ``next``, ``action``,
    ``("next", "reward")``, ``("next", "done")`` and, if there, ``("next", "terminated")`` ``[*B, 1]``,
    ``priority_weight`` ``[*B]`` and ``("collector", "mask")`` bool ``[*B]``. Returns scalars: ``loss_actor``,
    ``loss_qvalue`` and ``loss_value``, to be summed and minimized, and the detached ``entropy`` and means of
    ``td_error`` (absolute), ``pred_value`` and ``target_value``. Writes ``td_error`` ``[*B]`` into the batch.

    Args:
        actor_network: policy with a distribution.
        qvalue_network: reads ``action`` and writes ``state_action_value`` ``[*B, 1]``; the other critics are copies
            with new initial parameters. Or a list of critics.
        value_network: writes ``state_value`` ``[*B, 1]``.
        num_qvalue_nets: number of critics.
        loss_function: of the critics, ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        temperature: inverse temperature of the weights of actions, at least 0; 0 is behaviour cloning.
        expectile: Expectile of the values of actions that is fitted, in [0, 1]; 0.5 is their mean, 1 the best.
        gamma: discount, in [0, 1].
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` of the losses over the batch.

    Raises:
        ContractError: if a network lacks a key, or has parameters without a shape.
        SpecError: if an argument is out of its range.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import (
        ...     ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule, TensorDictSequential
        ... )
        >>> from torch.distributions import Independent, Normal
        >>> head = ProbabilisticTensorDictModule(
        ...     ["loc"], ["action"], distribution_class=lambda loc: Independent(Normal(loc, 1.0), 1)
        ... )
        >>> body = TensorDictModule(nn.Linear(3, 2), ["observation"], ["loc"])
        >>> both = TensorDictModule(lambda x, a: torch.cat([x, a], -1), ["observation", "action"], ["both"])
        >>> critic = TensorDictSequential(both, TensorDictModule(nn.Linear(5, 1), ["both"], ["state_action_value"]))
        >>> value = TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_value"])
        >>> loss = IQLLoss(ProbabilisticTensorDictSequential(body, head), critic, value, expectile=0.7)
        >>> flag = torch.zeros(8, 1, dtype=torch.bool)
        >>> after = TensorDict(observation=torch.randn(8, 3), reward=torch.ones(8, 1), done=flag, terminated=flag)
        >>> batch = TensorDict(observation=torch.randn(8, 3), action=torch.randn(8, 2), next=after, batch_size=[8])
        >>> out = loss(batch)
        >>> (out["loss_actor"] + out["loss_qvalue"] + out["loss_value"]).backward()
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {**OffPolicyLoss.default_keys, "value": "state_value"}

    value_network: nn.Module

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        value_network: nn.Module,
        *,
        num_qvalue_nets: int = 2,
        loss_function: str = "smooth_l1",
        temperature: float = 1.0,
        expectile: float = 0.5,
        gamma: float = 0.99,
        reduction: str | None = "mean",
    ) -> None:
        owner = type(self).__name__
        if not (is_number(temperature) and temperature >= 0):
            raise SpecError(f"{owner} got temperature={temperature!r}; it is a number of at least 0")
        if not (is_number(expectile) and 0 <= expectile <= 1):
            raise SpecError(f"{owner} got expectile={expectile!r}; it is in [0, 1]")
        super().__init__(
            actor_network,
            qvalue_network,
            num_qvalue_nets,
            loss_function=loss_function,
            delay_critic=True,
            delay_actor=False,
            gamma=gamma,
            reduction=reduction,
        )
        self.temperature, self.expectile = temperature, expectile
        self.value_network = value_network
        self.derive_early()

    def _derive_actor(self) -> list[NestedKey]:
        self._policy = ActorCall(self.actor_network)
        network = self._modules.get("value_network")
        if network is None:  # it is set after the first derivation
            return self._policy.in_keys
        self._value = NetworkCall(network, {"value": self._keys["value"]})
        return [*self._policy.in_keys, *self._value.in_keys]

    def _writes(self) -> tuple[Key, ...]:
        return (
            scalar("loss_actor", "negative log-probability of the actions, weighted by their advantage"),
            scalar("loss_value", "expectile regression of the value to those of the actions"),
            scalar("entropy", "entropy of the policy, nats, no gradient"),
        )

    def _next_value(self, batch: Batch) -> Tensor:
        return self._value(batch.after, batch.size)[0]

    def _taken(self, call: NetworkCall, batch: Batch) -> Tensor:
        """Values of the actions that were taken, ``[n, *B, 1]``."""
        (values,) = call(batch.entries, batch.size)
        return values

    def _predicted(self, batch: Batch) -> Tensor:
        return self._taken(self._critic_call, batch)

    def _actor_part(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            action_value = self._taken(self._target_critic, batch).amin(0)
        (value,) = self._value(batch.entries, batch.size)
        dist = self._policy(batch.entries, batch.size)
        log_prob = joint(dist.log_prob(taken(batch.entries, self._keys["action"], batch.size)))
        weight = advantage_weight((action_value - value.detach()).squeeze(-1), self.temperature)
        fit = expectile_loss(action_value - value, self.expectile).squeeze(-1)
        with torch.no_grad():
            _, entropy = weighted_entropy(dist, 0.0, 1, self.reduction, batch.mask)
        return {
            "loss_actor": reduce(-weight * log_prob, self.reduction, batch.mask),
            "loss_value": reduce(fit, self.reduction, batch.mask),
            "entropy": mean_of(entropy, batch.mask),
        }


@final
class DiscreteIQLLoss(IQLLoss):
    """Implicit Q-learning for discrete actions: critics of all actions.

    Kostrikov et al., "Offline reinforcement learning with implicit Q-learning", 2022. Keys and behaviour are those of
    `IQLLoss`; ``action`` is one-hot ``[*B, n]`` or integer ``[*B]``.

    Args:
        actor_network: policy with a discrete distribution.
        qvalue_network: writes ``action_value`` ``[*B, n]``, or a list of critics.
        value_network: writes ``state_value`` ``[*B, 1]``.
        others: those of `IQLLoss`.

    Raises:
        ContractError: if a network lacks a key, or has parameters without a shape.
        SpecError: if an argument is out of its range.

    Example:
        >>> from tensordict.nn import (
        ...     ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
        ... )
        >>> head = ProbabilisticTensorDictModule(
        ...     ["logits"], ["action"], distribution_class=torch.distributions.Categorical
        ... )
        >>> body = TensorDictModule(nn.Linear(3, 2), ["observation"], ["logits"])
        >>> critic = TensorDictModule(nn.Linear(3, 2), ["observation"], ["action_value"])
        >>> value = TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_value"])
        >>> DiscreteIQLLoss(ProbabilisticTensorDictSequential(body, head), critic, value).out_keys[:3]
        ['loss_actor', 'loss_value', 'entropy']
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {**IQLLoss.default_keys, "action_value": "action_value"}
    _critic_reads: ClassVar[str] = "action_value"

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: Any,
        value_network: nn.Module,
        *,
        action_space: Any = None,
        **others: Any,
    ) -> None:
        del action_space  # of TorchRL: the batch and the critics say it
        super().__init__(actor_network, qvalue_network, value_network, **others)

    def _taken(self, call: NetworkCall, batch: Batch) -> Tensor:
        key = self._keys["action"]
        return chosen_values(super()._taken(call, batch), batch.entries[key], key, type(self).__name__)
