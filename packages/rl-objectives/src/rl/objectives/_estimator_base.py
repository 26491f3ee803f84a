"""Bases of value estimators: what they read, and the values of both ends of each step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.core.arguments import as_number, module_arguments
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.core.keys import NestedKey, key_str, next_key
from rl.core.profiling import profiled
from rl.core.recurrent import State
from rl.core.sequences import OrderWatch, any_of_step, check_sequences, check_time_order
from rl.objectives._agents import AgentMasks, Entries, group_of, mask_keys, per_agent
from rl.objectives._batch import (
    DISCOUNT,
    MASK,
    STEPS,
    BatchReader,
    discount_key,
    entry_of_loss,
    expand_right,
    find_time_dim,
    replace_padding,
    steps_key,
    terminated_key,
)
from rl.objectives._keyed_module import KeyedModule
from rl.objectives._networks import NetworkCall, input_key

Pairs = dict[NestedKey, tuple[Tensor, Tensor]]
"""Inputs of a network by key: for each state and for its next state."""


@module_arguments()
class ValueEstimatorBase(KeyedModule):
    """Base of value estimators, which write ``advantage`` and ``value_target`` into a batch.

    With ``advantage`` or ``value`` in a group of agents, a reward and flags of the entire group, ``[*B, 1]``, count for
    each agent, and ``(group, "mask")`` (bool ``[*B, n_agents]``), if the batch has it, masks out agents that do not
    act, as described for `MultiAgentGAE`; `TD0Estimator`, which sees single steps, gives agents that do not act in the
    next step the next value 0.

    Args:
        gamma: Discount, in [0, 1].
        value_network: Network that writes ``state_value`` ``[*B, 1]``; if None, the batch already holds it, and
            ``("next", "state_value")``.
        differentiable: Whether gradients flow into the values.
        shifted: Whether ``("next", observation)`` at a step is the observation at the following one, unless the episode
            ended: the network is then evaluated on ``T + 1`` states and on those where an episode was truncated, not on
            ``2 T``. Results are the same; recurrent networks need the default.
        time_dim: Batch dimension of time; if None, the one named ``time``, else the last.

    Raises:
        ContractError: If the network does not write the value's key.
        ArgumentError: If a coefficient is outside [0, 1].
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        "value": "state_value",
        "reward": "reward",
        "done": "done",
        "terminated": "terminated",
        "advantage": "advantage",
        "value_target": "value_target",
        "sample_log_prob": "action_log_prob",  # of `VTrace`; the others take the name too
        "mask": MASK,
    }
    gamma: float | Tensor
    needs_time = True
    needs_actor = False
    """Whether the constructor takes ``actor_network``, which a loss with an actor then gives."""
    _expands_reward: ClassVar[bool] = False
    """Whether a shared reward is repeated for each agent though no key is in a group."""

    def __init__(
        self,
        *,
        gamma: float | Tensor = 0.99,
        value_network: nn.Module | None = None,
        differentiable: bool = False,
        shifted: bool = False,
        time_dim: int | None = None,
    ) -> None:
        super().__init__()
        self._set_coefficient("gamma", gamma)
        self.value_network = value_network
        self.differentiable, self.shifted, self.time_dim = differentiable, shifted, time_dim
        self._call: NetworkCall | None = None
        self._states: tuple[State, ...] = ()
        self._order, self._memory = OrderWatch(), OrderWatch()
        if type(self)._derive is ValueEstimatorBase._derive:  # noqa: SLF001 - one that extends it has more to set
            self.derive_early()

    def _set_coefficient(self, name: str, value: float | Tensor) -> None:
        if isinstance(value, Tensor):
            if value.numel() == 1:
                value = value.reshape(())
            if not bool(((value >= 0) & (value <= 1)).all()):
                ends = f"{value.min():g} to {value.max():g}"
                raise ArgumentError(f"{type(self).__name__}: {name} must be at least 0 and at most 1, got {ends}")
            self.register_buffer(name, value)
            return
        setattr(self, name, as_number(value, type(self).__name__, name, least=0, most=1))

    def _derive(self) -> Contract:
        keys, network = self._keys, self.value_network
        self._outcome: tuple[Any, Any, Any] = (
            next_key(keys["reward"]),
            next_key(keys["done"]),
            next_key(keys["terminated"]),
        )
        self._call = None if network is None else NetworkCall(network, {"value": keys["value"]})
        self._states = () if self._call is None else self._call.states
        if self._call is None:
            given = "; give the estimator a value_network, or write it before"
            inputs = [
                Key(keys["value"], (1,), "value of the state, units of return", remedy=given[2:].capitalize()),
                Key(next_key(keys["value"]), (1,), "value of the state that the step reached"),
            ]
        else:
            self._reject_shifted(self._call)
            inputs = [input_key(key, self._call.states, "input of the value network") for key in self._call.in_keys]
            inputs += [
                Key(next_key(key), doc="the same after the step", remedy="Collect with the next observations.")
                for key in self._call.outcome_keys
            ]
        reads = (
            *inputs,
            Key(next_key(keys["reward"]), (1,), "reward of the step"),
            Key(next_key(keys["done"]), (1,), "whether the episode ended with the step", torch.bool),
            terminated_key(keys["terminated"]),
            *mask_keys(keys["mask"], self._agents, after=True),
            *([discount_key(keys["discount"]), steps_key(keys["steps_to_next_obs"])] if "discount" in keys else []),
        )
        writes = [
            Key(keys["advantage"], (1,), "advantage of the action, units of return"),
            Key(keys["value_target"], (1,), "target of the critic, units of return"),
        ]
        if self._call is not None:
            writes.append(Key(keys["value"], (1,), "value of the state, units of return"))
        self._reads = Contract(reads, tuple(writes))
        self._estimator_reader = BatchReader(self._reads, keys, type(self).__name__)
        return self._reads  # a subclass may read more

    def _reject_shifted(self, call: NetworkCall) -> None:
        if self.shifted and call.states:
            raise ArgumentError(
                f"{type(self).__name__} got shifted=True, which cuts the sequences that"
                f" {call.states[0].owner or 'a recurrent network'} needs whole: leave it out"
            )

    def can_read(self, tensordict: TensorDictBase) -> bool:
        """Return whether a batch has all entries that are read."""
        names = self.derived().in_keys
        return all(self._reader.entry(tensordict, key) is not None for key in names)

    @abstractmethod
    def estimate(
        self, value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int
    ) -> tuple[Tensor, Tensor]:
        """Return the advantage and value target, ``[*B, T, F]`` as all arguments are."""

    def formula(self, tensordict: TensorDictBase) -> Callable[..., tuple[Tensor, Tensor]]:  # noqa: ARG002 - for others
        """Return `estimate`, bound to further entries of the batch."""
        return self.estimate

    def _in_units_of_return(self, value: Tensor) -> Tensor:
        """Return the network's values in units of return; as they are, unless a subclass normalizes them."""
        return value

    def _agent_masks(self) -> AgentMasks | None:
        group = group_of(self._keys["advantage"]) or group_of(self._keys["value"])
        return AgentMasks(group, self._keys, type(self).__name__) if group else None

    def find_time(self, td: TensorDictBase, done: Tensor) -> int:
        """Return the batch dimension of time.

        Raises:
            ContractError: If none can be, or the steps are not in time order.
        """
        return self._time_of(td, done, self._reader.step_masks(td)[0]) if self.needs_time else 0

    def _time_of(self, td: TensorDictBase, done: Tensor, mask: Tensor | None) -> int:
        """Return the dimension of time, after the check of the order of steps."""
        owner = type(self).__name__
        dim = find_time_dim(td, self.time_dim, owner)
        if self._order.compares(done):
            check_time_order(td, dim, done, owner, mask=mask, mask_key=self._keys["mask"])
        return dim

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the estimates into the batch and return it.

        Args:
            tensordict: Batch ``[*B, T]`` in time order.

        Raises:
            ContractError: If a key that is read is absent, the batch is not in time order, or a step is terminated or
                truncated and not done.
            ShapeError: If shapes do not agree.
        """
        self.derived()
        keys, reader, agents = self._keys, self._estimator_reader, self._agents
        reader.check_unobserved(tensordict)
        raw = reader.read_required(tensordict)
        mask, _ = reader.step_masks(tensordict)
        reward_key, done_key, terminated_key = self._outcome
        # Flags are completed as the batch holds them: padding after a step that is not done raises.
        ended = reader.entry(tensordict, terminated_key)
        done, terminated = reader.end_flags(tensordict, raw[done_key], ended, mask)
        dim = self._time_of(tensordict, done, mask) if self.needs_time else 0
        entries: Entries = raw if mask is None else dict(zip(raw, replace_padding([*raw.values()], mask), strict=True))
        masks = None if agents is None else agents.of_sequences(tensordict, dim if self.needs_time else None)
        if agents is not None and masks is not None:
            entries = agents.mask_sequences(tensordict, entries, masks, recurrent=bool(self._states))
        if self._states:
            self._check_memory(tensordict, dim, done)
        with profiled(type(self).__name__), nullcontext() if self.differentiable else torch.no_grad():
            if self._call is None:
                value, next_value = entries[keys["value"]], entries[next_key(keys["value"])]
            else:
                value, next_value = self._evaluate(self._call, entries, (done, terminated), tensordict.batch_size, dim)
            values = self._in_units_of_return(value), self._in_units_of_return(next_value)
            outcome = [entries[reward_key], done, terminated]
            if self._expands_reward or agents is not None:
                outcome = per_agent(value, outcome)
            if agents is not None and masks is not None:
                values = agents.skip_inactive(self.gamma, values, outcome, masks, dim if self.needs_time else None)
            advantage, target = self.formula(tensordict)(*values, *outcome, dim)
        if self._call is not None:
            tensordict.set(self._keys["value"], value)
        tensordict.set(self._keys["advantage"], advantage)
        return tensordict.set(self._keys["value_target"], target)

    def _evaluate(
        self,
        call: NetworkCall,
        entries: Mapping[NestedKey, Tensor],
        flags: tuple[Tensor, Tensor],
        batch_size: torch.Size,
        time_dim: int,
    ) -> tuple[Tensor, Tensor]:
        """Return the values of the states before and after each step."""
        if call.states:
            (value,), after = call.sequence(entries, batch_size)
            return value, call.following(entries, after, batch_size)[0]
        done, terminated = flags
        pairs: Pairs = {}
        for key in call.in_keys:
            before, after = entries[key], entries[next_key(key)]
            if before.shape != after.shape:
                raise ShapeError(
                    f"{key_str(key)} has shape {tuple(before.shape)} and {key_str(next_key(key))}"
                    f" {tuple(after.shape)}; both describe a state, expected one shape"
                )
            if self.differentiable:  # a terminal state has no value, and may hold anything
                last = terminated.flatten(len(batch_size)).all(-1)
                after = after.where(~expand_right(last, after), before)
            pairs[key] = before, after
        steps = batch_size[time_dim] if self.needs_time else 0
        if self.shifted and steps and not torch.compiler.is_compiling():
            return _evaluate_shifted(call, pairs, done > terminated, batch_size, time_dim)
        return _evaluate_both(call, pairs, batch_size, time_dim if self.needs_time else None)

    def _check_memory(self, td: TensorDictBase, dim: int, done: Tensor) -> None:
        """Raise if a recurrent network would misread the order of the batch."""
        if self.needs_time and dim != td.ndim - 1:
            raise ShapeError(
                f"{type(self).__name__} found time in dimension {dim} of a batch of shape {tuple(td.shape)}; a"
                " recurrent network reads it from the last one: transpose the batch"
            )
        if self._memory.compares(done):
            check_sequences(td, self._states, type(self).__name__, done_key=self._keys["done"])


def _evaluate_both(
    call: NetworkCall, pairs: Pairs, batch_size: torch.Size, time_dim: int | None
) -> tuple[Tensor, Tensor]:
    """Return the values of both states in one call, joined along a dimension that is not time."""
    dim = next((i for i in range(len(batch_size)) if i != time_dim), None)
    if dim is None:
        both = {key: torch.stack(pair) for key, pair in pairs.items()}
        value, next_value = call(both, torch.Size((2, *batch_size)))[0].unbind(0)
        return value, next_value
    both = {key: torch.cat(pair, dim) for key, pair in pairs.items()}
    size = list(batch_size)
    size[dim] *= 2
    value, next_value = call(both, torch.Size(size))[0].chunk(2, dim)
    return value, next_value


def _evaluate_shifted(
    call: NetworkCall, pairs: Pairs, truncated: Tensor, batch_size: torch.Size, time_dim: int
) -> tuple[Tensor, Tensor]:
    """Return the values of both states from ``T + 1`` states, and from those where an episode was truncated."""
    steps = batch_size[time_dim]
    rows = {
        key: torch.cat((before, after.narrow(time_dim, steps - 1, 1)), time_dim)
        for key, (before, after) in pairs.items()
    }
    size = list(batch_size)
    size[time_dim] += 1
    values = call(rows, torch.Size(size))[0]
    # Contiguous tensors are faster in the returns.
    value, next_value = (values.narrow(time_dim, first, steps).contiguous() for first in (0, 1))
    inside = any_of_step(truncated, len(batch_size)).narrow(time_dim, 0, steps - 1).nonzero(as_tuple=True)
    if len(inside[0]):
        # After a truncation the following row is another episode: these final states are evaluated themselves.
        final = call({key: after[inside] for key, (_, after) in pairs.items()}, inside[0].shape)[0]
        next_value = next_value.index_put(inside, final)
    return value, next_value


@module_arguments()
class TDEstimatorBase(ValueEstimatorBase):
    """Base of estimators whose target needs only the values of the next states; advantage = target - value.

    Where the batch has ``gamma`` ``[*B, 1]``, as `MultiStepTransform` of rl-replay writes it, rewards are multi-step
    returns, and it is the discount of the next values; where it has only ``steps_to_next_obs``, that discount is the
    estimator's to this power. Only `TD0Estimator` can use such batches.
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        **ValueEstimatorBase.default_keys,
        "discount": DISCOUNT,
        "steps_to_next_obs": STEPS,
    }

    @abstractmethod
    def returns(self, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int) -> Tensor:
        """Return the target, ``[*B, T, F]`` as all arguments are."""

    def row_discount(self, discount: Tensor | None, steps: Tensor | None) -> Tensor | None:
        """Return the discount of each next value ``[*B, 1]``: `discount`, else ``gamma ** steps``, else None.

        Raises:
            ContractError: If `discount` is not floating-point, or on a CPU outside of [0, 1].
        """
        if discount is not None:
            read = discount.is_cpu and not torch.compiler.is_compiling()
            if not discount.is_floating_point() or (read and not ((discount >= 0) & (discount <= 1)).all()):
                floats = discount.is_floating_point()
                found = f"from {discount.min():g} to {discount.max():g}" if floats else f"of {discount.dtype}"
                name = key_str(self._keys["discount"])
                raise ContractError(
                    f"{type(self).__name__}: {name} is {found}, and would be the discount of each row, in [0, 1]."
                    f" Rename the entry, or name another one with set_keys(discount='none')"
                )
        if discount is not None or steps is None:
            return discount
        return torch.pow(self.gamma, steps)

    def discounted(self, discount: Tensor | None) -> Callable[..., Tensor]:
        """Return `returns` for the discount that the batch holds, ``[*B, 1]``, or None.

        Raises:
            ContractError: If it holds one, and the estimator adds the rewards of several steps.
        """
        if discount is None:
            return self.returns
        raise ContractError(
            f"{type(self).__name__} adds the rewards of several steps, and the batch has"
            f" {key_str(self._keys['discount'])} or {key_str(self._keys['steps_to_next_obs'])}: its rewards are"
            " multi-step returns already. Use TD0, or store single steps"
        )

    def formula(self, tensordict: TensorDictBase) -> Callable[..., tuple[Tensor, Tensor]]:
        keys = self._keys
        discount = self.row_discount(
            entry_of_loss(tensordict, keys["discount"]), entry_of_loss(tensordict, keys["steps_to_next_obs"])
        )
        if discount is None:
            return self.estimate
        returns = self.discounted(discount)
        return lambda value, *outcome: _with_advantage(value, returns(*outcome))

    def estimate(
        self, value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int
    ) -> tuple[Tensor, Tensor]:
        """Return the advantage and value target, ``[*B, T, F]`` as all arguments are."""
        return _with_advantage(value, self.returns(next_value, reward, done, terminated, time_dim))


def _with_advantage(value: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    if value.shape != target.shape:
        raise ShapeError(
            f"state_value has shape {tuple(value.shape)} and reward {tuple(target.shape)}: they would broadcast"
        )
    return target - value, target
