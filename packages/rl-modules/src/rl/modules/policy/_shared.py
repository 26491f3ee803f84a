"""Policies and critics with a shared trunk."""

from __future__ import annotations

from typing import Any

from tensordict.nn import TensorDictModuleBase, TensorDictSequential

from rl.core.contract import Contract, Key
from rl.core.errors import ContractError
from rl.core.keys import ACTION, STATE_ACTION_VALUE, as_tuple
from rl.modules._keys import key_list, parts
from rl.modules.policy._actor import ProbabilisticActor, reads_of

__all__ = ["ActorCriticOperator", "ActorCriticWrapper", "ActorValueOperator"]


class _Joint(TensorDictSequential):
    """Sequence of modules, with views of its parts that share the parameters."""

    spec: Any

    @property
    def contract(self) -> Contract:
        """Keys that are read and written."""
        return Contract(reads_of(self.in_keys), tuple(Key(key) for key in key_list(self.out_keys)))


class ActorValueOperator(_Joint):
    """Policy and state-value critic on a shared trunk; one call runs all three.

    Args:
        common_operator: writes the features.
        policy_operator: reads features, writes the action; a `ProbabilisticActor` keeps its distribution.
        value_operator: reads features, writes ``state_value``.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from rl.modules import Actor, ValueOperator
        >>> trunk = TensorDictModule(torch.nn.Linear(3, 8), ["observation"], ["hidden"])
        >>> both = ActorValueOperator(
        ...     trunk,
        ...     Actor(torch.nn.Linear(8, 2), ["hidden"]),
        ...     ValueOperator(torch.nn.Linear(8, 1), ["hidden"]),
        ... )
        >>> td = both.get_value_operator()(TensorDict(observation=torch.zeros(5, 3), batch_size=[5]))
        >>> sorted(td.keys())
        ['hidden', 'observation', 'state_value']
    """

    def __init__(
        self,
        common_operator: TensorDictModuleBase,
        policy_operator: TensorDictModuleBase,
        value_operator: TensorDictModuleBase,
    ) -> None:
        super().__init__(common_operator, policy_operator, value_operator)
        self.spec = getattr(policy_operator, "spec", None)

    def get_policy_operator(self) -> TensorDictModuleBase:
        """Trunk and policy, without the value."""
        return _joined(parts(self)[0], parts(self)[1])

    def get_value_operator(self) -> TensorDictModuleBase:
        """Trunk and value, without the policy."""
        return TensorDictSequential(parts(self)[0], parts(self)[2])

    def get_policy_head(self) -> TensorDictModuleBase:
        """The policy on features."""
        return parts(self)[1]

    def get_value_head(self) -> TensorDictModuleBase:
        """The value on features."""
        return parts(self)[2]


class ActorCriticOperator(_Joint):
    """Policy and action-value critic on a shared trunk.

    Args:
        common_operator: writes the features.
        policy_operator: reads features, writes the action.
        value_operator: reads features and action, writes ``state_action_value``.

    Raises:
        ContractError: if the critic does not read the action, or writes ``state_value``.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from rl.modules import MLP, Actor, ValueOperator
        >>> trunk = TensorDictModule(torch.nn.Linear(3, 8), ["observation"], ["hidden"])
        >>> both = ActorCriticOperator(
        ...     trunk, Actor(torch.nn.Linear(8, 2), ["hidden"]), ValueOperator(MLP(10, 1), ["hidden", "action"])
        ... )
        >>> both(TensorDict(observation=torch.zeros(5, 3), batch_size=[5]))["state_action_value"].shape
        torch.Size([5, 1])
    """

    def __init__(
        self,
        common_operator: TensorDictModuleBase,
        policy_operator: TensorDictModuleBase,
        value_operator: TensorDictModuleBase,
    ) -> None:
        actions = [key for key in key_list(policy_operator.out_keys) if as_tuple(key)[-1] == ACTION]
        if not any(key in actions for key in key_list(value_operator.in_keys)):
            raise ContractError(
                f"ActorCriticOperator: the critic must read the action {actions} and write"
                f" {STATE_ACTION_VALUE!r}, it reads {list(value_operator.in_keys)}: for a state value use"
                " ActorValueOperator"
            )
        super().__init__(common_operator, policy_operator, value_operator)
        self.spec = getattr(policy_operator, "spec", None)

    def get_policy_operator(self) -> TensorDictModuleBase:
        """Trunk and policy, without the critic."""
        return _joined(parts(self)[0], parts(self)[1])

    def get_critic_operator(self) -> TensorDictModuleBase:
        """Trunk and critic: the value of the action in the batch; the policy does not run."""
        return TensorDictSequential(parts(self)[0], parts(self)[2])

    def get_policy_head(self) -> TensorDictModuleBase:
        """The policy on features."""
        return parts(self)[1]

    def get_value_head(self) -> TensorDictModuleBase:
        """The critic on features."""
        return parts(self)[2]


class ActorCriticWrapper(_Joint):
    """Policy and critic without shared parameters, as one module.

    Args:
        policy_operator: writes the action.
        value_operator: writes a value.

    Example:
        >>> import torch
        >>> from rl.modules import Actor, ValueOperator
        >>> both = ActorCriticWrapper(Actor(torch.nn.Linear(3, 2)), ValueOperator(torch.nn.Linear(3, 1)))
        >>> both.out_keys
        ['action', 'state_value']
    """

    def __init__(self, policy_operator: TensorDictModuleBase, value_operator: TensorDictModuleBase) -> None:
        super().__init__(policy_operator, value_operator)
        self.spec = getattr(policy_operator, "spec", None)

    def get_policy_operator(self) -> TensorDictModuleBase:
        """The policy."""
        return parts(self)[0]

    def get_value_operator(self) -> TensorDictModuleBase:
        """The critic."""
        return parts(self)[1]


def _joined(trunk: TensorDictModuleBase, policy: TensorDictModuleBase) -> TensorDictModuleBase:
    if isinstance(policy, ProbabilisticActor):
        return ProbabilisticActor.from_parts(trunk, policy)
    return TensorDictSequential(trunk, policy)
