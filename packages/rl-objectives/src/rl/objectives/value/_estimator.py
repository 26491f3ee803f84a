"""What all value estimators share: keys, values of both states, time order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.core._sequences import check_sequences
from rl.core.contract import Contract, Key
from rl.core.errors import ContractError, ShapeError, SpecError
from rl.core.keys import NEXT, NestedKey, as_tuple, key_str, nearest, next_key, unwrap
from rl.objectives import _foreign
from rl.objectives._counted import MASK, by_step, mask_key, refuse_open_ends
from rl.objectives._networks import NetworkCall, input_key
from rl.objectives.value._order import find_time_dim, refuse_shuffled
from rl.objectives.value.functional._shared import ended as as_flags

__all__ = ["TDEstimatorBase", "ValueEstimatorBase"]

_KEYS: dict[str, NestedKey] = {
    "value": "state_value",
    "reward": "reward",
    "done": "done",
    "terminated": "terminated",
    "advantage": "advantage",
    "value_target": "value_target",
    "mask": MASK,
}


@_foreign.estimator
class ValueEstimatorBase(nn.Module, ABC):
    """Adds ``advantage`` and ``value_target`` to a batch; subclasses say by which formula.

    Args:
        gamma: discount, in [0, 1].
        value_network: writes ``state_value`` ``[*B, 1]``; if None, the batch already holds it, and ``("next",
            "state_value")``.
        differentiable: whether gradients flow into the values.
        shifted: promises that ``("next", observation)`` at a step is the observation at the following one, unless the
            episode ended: the network is then evaluated on ``T + 1`` states and on those where an episode was
            truncated, not on ``2 T``. Results are the same; networks with memory need the default.
        time_dim: which batch dimension is time; if None, the one named ``time``, else the last.

    Raises:
        ContractError: if the network does not write the value's key.
        SpecError: if a coefficient is outside [0, 1].
    """

    gamma: float | Tensor
    needs_time = True
    needs_actor = False
    """Whether the constructor takes ``actor_network``, which a loss with an actor then gives."""

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
        self._hold("gamma", gamma)
        self.value_network = value_network
        self.differentiable, self.shifted, self.time_dim = differentiable, shifted, time_dim
        self._keys = dict(_KEYS)
        self._prepare()

    def _hold(self, name: str, value: float | Tensor) -> None:
        if isinstance(value, Tensor):
            if not bool(((value >= 0) & (value <= 1)).all()):
                ends = f"{name} from {value.min():g} to {value.max():g}"
                raise SpecError(f"{type(self).__name__} got {ends}; it must be in [0, 1]")
            self.register_buffer(name, value)
            return
        if not 0 <= value <= 1:
            raise SpecError(f"{type(self).__name__} got {name}={value}; it must be in [0, 1]")
        setattr(self, name, float(value))

    def _prepare(self) -> None:
        keys = self._keys
        network = self.value_network
        self._call = None if network is None else NetworkCall(network, [keys["value"]])
        self._states = () if self._call is None else self._call.states
        if self._call is None:
            given = "; give the estimator a value_network, or write it before"
            inputs = [
                Key(keys["value"], (1,), "value of the state, units of return", remedy=given[2:].capitalize()),
                Key(next_key(keys["value"]), (1,), "value of the state that the step reached"),
            ]
        else:
            self._refuse_shifted(self._call)
            inputs = [input_key(key, self._call.states, "input of the value network") for key in self._call.in_keys]
            inputs += [
                Key(next_key(key), doc="the same after the step", remedy="Collect with the next observations.")
                for key in self._call.outcome_keys
            ]
        reads = (
            *inputs,
            Key(next_key(keys["reward"]), (1,), "reward of the step"),
            Key(next_key(keys["done"]), (1,), "whether the episode ended with the step", torch.bool),
            Key(
                next_key(keys["terminated"]),
                (1,),
                "whether it ended for good; done if absent",
                torch.bool,
                optional=True,
            ),
            mask_key(keys["mask"]),
        )
        writes = [
            Key(keys["advantage"], (1,), "advantage of the action, units of return"),
            Key(keys["value_target"], (1,), "target of the critic, units of return"),
        ]
        if self._call is not None:
            writes.append(Key(keys["value"], (1,), "value of the state, units of return"))
        # What `forward` reads itself; a subclass may read more.
        self.contract = self._reads = Contract(reads, tuple(writes))

    def _refuse_shifted(self, call: NetworkCall) -> None:
        if self.shifted and call.states:
            raise ContractError(
                f"{type(self).__name__} got shifted=True, which cuts the sequences that"
                f" {call.states[0].owner or 'a network with memory'} needs whole: leave it out"
            )

    @property
    def in_keys(self) -> list[NestedKey]:
        """Keys that are read."""
        return self.contract.in_keys

    @property
    def out_keys(self) -> list[NestedKey]:
        """Keys that are written."""
        return self.contract.out_keys

    @property
    def named_keys(self) -> dict[str, NestedKey]:
        """What `set_keys` can name, and the key that holds it."""
        return dict(self._keys)

    def set_keys(self, **names: NestedKey) -> None:
        """Read or write other keys than the usual ones.

        Args:
            names: of ``value``, ``reward``, ``done``, ``terminated``, ``advantage``, ``value_target``, ``mask``;
                those of a step's outcome without their ``next``.

        Raises:
            ContractError: if a name is none of these, or starts with ``next``.

        Example:
            >>> from rl.objectives.value import GAE
            >>> gae = GAE()
            >>> gae.set_keys(reward=("agents", "reward"))
            >>> gae.in_keys[2]
            ('next', 'agents', 'reward')
        """
        for name, key in names.items():
            if name not in self._keys:
                close = nearest(name, self._keys)
                hint = f"; did you mean {close!r}?" if close is not None else ""
                raise ContractError(f"{type(self).__name__} has no key {name!r}; it has {', '.join(self._keys)}{hint}")
            if as_tuple(key)[0] == NEXT:
                raise ContractError(
                    f"{type(self).__name__} adds 'next' itself: give {name}={key_str(unwrap(as_tuple(key)[1:]))}"
                )
        before = self._keys
        self._keys = {**before, **{name: unwrap(key) for name, key in names.items()}}
        try:
            self._prepare()
        except ContractError:
            self._keys = before
            raise

    @abstractmethod
    def estimate(
        self, value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int
    ) -> tuple[Tensor, Tensor]:
        """Advantage and value target, ``[*B, T, F]`` as all arguments are."""

    def formula(self, tensordict: TensorDictBase) -> Callable[..., tuple[Tensor, Tensor]]:  # noqa: ARG002 - for others
        """`estimate`, with whatever else it needs of the batch."""
        return self.estimate

    def find_time(self, td: TensorDictBase, done: Tensor) -> int:
        """Which batch dimension is time.

        Raises:
            ContractError: if none can be, or the steps are not in time order.
        """
        if not self.needs_time:
            return 0
        dim = find_time_dim(td, self.time_dim, type(self).__name__)
        refuse_open_ends(td, self._keys["mask"], done, dim, type(self).__name__)
        refuse_shuffled(td, dim, done, type(self).__name__)
        return dim

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the estimates into the batch and return it.

        Args:
            tensordict: batch ``[*B, T]`` in time order.

        Raises:
            ContractError: if a key that is read is absent, or the batch is not in time order.
            ShapeError: if shapes do not agree.
        """
        *inputs, reward, done = self._reads.read(tensordict, self)
        ended = tensordict.get(next_key(self._keys["terminated"]), None)
        done, terminated = as_flags(done, ended)
        dim = self.find_time(tensordict, done)
        if self._states:
            self._check_memory(tensordict, dim)
        with nullcontext() if self.differentiable else torch.no_grad():
            if self._call is None:
                value, next_value = inputs
            else:
                value, next_value = self._evaluate(inputs, (done, terminated), tensordict.batch_size, dim)
            advantage, target = self.formula(tensordict)(value, next_value, reward, done, terminated, dim)
        if self._call is not None:
            tensordict.set(self._keys["value"], value)
        tensordict.set(self._keys["advantage"], advantage)
        return tensordict.set(self._keys["value_target"], target)

    def _evaluate(
        self, inputs: Sequence[Tensor], flags: tuple[Tensor, Tensor], batch_size: torch.Size, time_dim: int
    ) -> tuple[Tensor, Tensor]:
        """Values of the states before and after each step."""
        assert self._call is not None
        count = len(self._call.in_keys)
        root, following = inputs[:count], inputs[count:]
        if self._call.states:
            (value,), after = self._call.sequence(root, batch_size)
            return value, self._call.following(root, following, after, batch_size)[0]
        for key, before, after in zip(self.in_keys, root, following, strict=False):
            if before.shape != after.shape:
                raise ShapeError(
                    f"{key_str(key)} has shape {tuple(before.shape)} and {key_str(next_key(key))}"
                    f" {tuple(after.shape)}; both describe a state, so they are to agree"
                )
        steps = batch_size[time_dim] if self.needs_time else 0
        if self.shifted and steps and not torch.compiler.is_compiling():
            done, terminated = flags
            truncated = done > terminated
            return self._evaluate_shifted(root, following, truncated, batch_size, time_dim)
        return self._evaluate_both(root, following, batch_size, time_dim)

    def _check_memory(self, td: TensorDictBase, dim: int) -> None:
        """Refuse a batch that a network with memory would misread."""
        if self.needs_time and dim != td.ndim - 1:
            raise ContractError(
                f"{type(self).__name__} found time in dimension {dim} of a batch of shape {tuple(td.shape)}; a network"
                " that carries state reads it from the last one: transpose the batch"
            )
        check_sequences(td, self._states, type(self).__name__, done_key=self._keys["done"])

    def _network(self, leaves: Sequence[Tensor], batch_size: Sequence[int]) -> Tensor:
        assert self._call is not None
        return self._call(leaves, torch.Size(batch_size))[0]

    def _evaluate_both(
        self, root: Sequence[Tensor], following: Sequence[Tensor], batch_size: torch.Size, time_dim: int
    ) -> tuple[Tensor, Tensor]:
        assert self._call is not None
        if not torch.compiler.is_compiling() and all(leaf.is_cpu for leaf in root) and self._call.by_row:
            # There a call costs little, and memory for both copies of everything much.
            return self._network(root, batch_size), self._network(following, batch_size)
        # Joined along a dimension that is not time, so that a network with memory sees whole sequences.
        dim = next((i for i in range(len(batch_size)) if i != time_dim or not self.needs_time), None)
        if dim is None:
            both = [torch.stack(pair) for pair in zip(root, following, strict=True)]
            value, next_value = self._network(both, (2, *batch_size)).unbind(0)
            return value, next_value
        both = [torch.cat(pair, dim) for pair in zip(root, following, strict=True)]
        size = list(batch_size)
        size[dim] *= 2
        value, next_value = self._network(both, size).chunk(2, dim)
        return value, next_value

    def _evaluate_shifted(
        self,
        root: Sequence[Tensor],
        following: Sequence[Tensor],
        truncated: Tensor,
        batch_size: torch.Size,
        time_dim: int,
    ) -> tuple[Tensor, Tensor]:
        steps = batch_size[time_dim]
        rows = [
            torch.cat((before, after.narrow(time_dim, steps - 1, 1)), time_dim)
            for before, after in zip(root, following, strict=True)
        ]
        size = list(batch_size)
        size[time_dim] += 1
        values = self._network(rows, size)
        # Dense, as the returns like them best.
        value, next_value = (values.narrow(time_dim, first, steps).contiguous() for first in (0, 1))
        inside = by_step(truncated, len(batch_size)).narrow(time_dim, 0, steps - 1).nonzero(as_tuple=True)
        if len(inside[0]):
            # Behind a truncation the following row is another episode: these final states are evaluated themselves.
            final = self._network([leaf[inside] for leaf in following], inside[0].shape)
            next_value = next_value.index_put(inside, final)
        return value, next_value

    def __setattr__(self, name: str, value: Any) -> None:
        before: Any = self._modules.get(name)
        super().__setattr__(name, value)
        if name == "value_network" and "contract" in self.__dict__:
            try:
                self._prepare()
            except ContractError:
                super().__setattr__(name, before)
                raise

    def __getstate__(self) -> dict[str, Any]:
        # What was derived from the network would still call the original one from a copy.
        state = dict(super().__getstate__())
        del state["_call"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._prepare()


@_foreign.td_estimator
class TDEstimatorBase(ValueEstimatorBase):
    """An estimator whose target needs the values of the next states only; the advantage is that less the value."""

    @abstractmethod
    def returns(self, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int) -> Tensor:
        """The target, ``[*B, T, F]`` as all arguments are."""

    def estimate(
        self, value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int
    ) -> tuple[Tensor, Tensor]:
        """Advantage and value target, ``[*B, T, F]`` as all arguments are."""
        if value.shape != reward.shape:
            raise ShapeError(
                f"state_value has shape {tuple(value.shape)} and reward {tuple(reward.shape)}: they would broadcast"
            )
        target = self.returns(next_value, reward, done, terminated, time_dim)
        return target - value, target
