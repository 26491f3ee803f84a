"""The base class of losses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import update_wrapper
from types import FunctionType
from typing import Any, ClassVar, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rl.core.arguments import as_number
from rl.core.contract import Contract, Key
from rl.core.errors import (
    ArgumentError,
    ShapeError,
    UnknownArgumentError,
    UnknownNameError,
    UnsupportedError,
    issue_warning,
)
from rl.core.keys import NestedKey, as_tuple, key_str, nearest, unwrap
from rl.core.profiling import profiled
from rl.core.recurrent import State
from rl.core.sequences import OrderWatch, check_sequences
from rl.objectives._agents import AgentMasks, Entries, group_of
from rl.objectives._batch import MASK, BatchReader, entry_of_loss, expand_right, replace_padding
from rl.objectives._estimator_base import ValueEstimatorBase
from rl.objectives._keyed_module import KeyedModule
from rl.objectives.estimators import ValueEstimators, estimator_class
from rl.objectives.functional._q_learning import check_reduction
from rl.objectives.targets import TargetWatch


def of_estimator(name: str) -> Any:
    """Create a property of a loss: a coefficient of its value estimator, in [0, 1], which may be assigned."""

    def read(self: LossModule) -> Any:
        return getattr(self.value_estimator, name)

    def write(self: LossModule, value: Any) -> None:
        estimator, owner = self.value_estimator, type(self).__name__
        if not hasattr(estimator, name):
            kind = "no value estimator" if estimator is None else f"a {type(estimator).__name__}, without {name}"
            raise AttributeError(
                f"{owner}.{name} is that of its value estimator, and it has {kind}. Call"
                f" make_value_estimator(value_type, {name}=...)"
            )
        setattr(estimator, name, value if isinstance(value, Tensor) else as_number(value, owner, name, least=0, most=1))

    return property(read, write, doc=f"`{name}` of the value estimator; it may be assigned.")


class LossModule(KeyedModule):
    """Base of losses: reads a batch and returns scalars; entries that start with ``loss`` are minimized.

    A loss holds the given networks, not copies. A target network is held as ``target_NAME`` next to ``NAME``: it is
    part of ``state_dict()``, not of ``parameters()``. ``NAME_params`` and ``target_NAME_params`` are the parameters and
    buffers of a network as a TensorDict, as in TorchRL, for an optimizer of its own; without a target network the
    latter are those of the network, without gradient.

    A subclass sets `default_keys`, and implements `_derive`, which returns the contract, and `forward`, which reads
    entries with `read`. The last line of its ``__init__`` is ``self.derive_early()``. An example is in
    docs/howto/losses.md. In place of `_derive` it may set ``in_keys`` and ``out_keys``, on the class or on the loss.

    Args:
        reduction: Reduction over the batch, ``"mean"`` (or None), ``"sum"`` or ``"none"``.

    Raises:
        ArgumentError: If the reduction is unknown.

    Example:
        >>> class Norm(LossModule):
        ...     in_keys, out_keys = ["x"], ["loss_norm"]
        ...     def forward(self, tensordict):
        ...         return TensorDict(loss_norm=tensordict["x"].norm())
        >>> Norm()(x=torch.tensor([3.0, 4.0]))
        tensor(5.)
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {"done": "done", "mask": MASK}
    default_value_estimator: ClassVar[ValueEstimators] = ValueEstimators.TD0
    network_inputs: ClassVar[tuple[str, ...]] = ()
    """Names of the keys that networks read too, as critics read actions."""

    def __init_subclass__(cls, **options: Any) -> None:
        # torch.compile limits the number of graphs of a code object: each class has one of its own for calls.
        super().__init_subclass__(**options)
        call = LossModule.__call__
        code = call.__code__.replace(co_name=f"{cls.__name__}.__call__")
        own = FunctionType(code, call.__globals__, "__call__", call.__defaults__, call.__closure__)
        cls.__call__ = update_wrapper(own, call)

    def __init__(self, *, reduction: str | None = "mean") -> None:
        super().__init__()
        self.reduction = check_reduction(reduction, type(self).__name__)
        self._estimators: list[ValueEstimatorBase] = []  # in a list: its networks are not held twice
        self._networks_before: dict[str, nn.Module] = {}
        self._states: tuple[State, ...] = ()
        self._order = OrderWatch()
        self._declared: dict[str, list[NestedKey]] = {}
        self._selected: list[NestedKey] | None = None
        self._target_watch = TargetWatch()

    def _derive(self) -> Contract:
        reads, writes = (self._declared_keys(name) for name in ("in_keys", "out_keys"))
        return Contract(tuple(map(Key, reads)), tuple(Key(key, batched=False) for key in writes))

    def _declared_keys(self, name: str) -> Sequence[NestedKey]:
        """Return ``in_keys`` or ``out_keys`` of a subclass without `_derive`, as it sets them."""
        inherited = getattr(type(self), name) is getattr(LossModule, name)
        return self._declared.get(name, []) if inherited else getattr(self, name)

    def _declare(self, name: str, keys: Sequence[NestedKey]) -> None:
        if type(self)._derive is not LossModule._derive:  # noqa: SLF001 - whether a subclass has one
            raise AttributeError(f"{name} of {type(self).__name__} follow from its networks and keys: use set_keys")
        self._declared[name] = list(keys)
        self._derived_from = None

    @property
    def in_keys(self) -> list[NestedKey]:
        """Keys that must be in the batch, in order; a subclass without `_derive` sets them."""
        return self.contract.in_keys

    @in_keys.setter
    def in_keys(self, keys: Sequence[NestedKey]) -> None:
        self._declare("in_keys", keys)

    @property
    def out_keys(self) -> list[NestedKey]:
        """Keys that are returned, in order; a subclass without `_derive` sets them."""
        return self.contract.out_keys if self._selected is None else list(self._selected)

    @out_keys.setter
    def out_keys(self, keys: Sequence[NestedKey]) -> None:
        self._declare("out_keys", keys)

    def select_out_keys(self, *out_keys: NestedKey) -> Self:
        """Return only some outputs; everything is computed as before.

        Args:
            out_keys: Keys of the outputs, among those of the contract.

        Returns:
            The loss itself.

        Raises:
            UnknownNameError: If the loss has no such output; nothing is changed then.
        """
        known = self.contract.out_keys
        wrong = [key for key in map(unwrap, out_keys) if key not in known]
        if wrong:
            there = ", ".join(map(key_str, known))
            raise UnknownNameError(
                f"{type(self).__name__} returns no {', '.join(map(key_str, wrong))}; it returns {there}"
            )
        self._selected = [*map(unwrap, out_keys)]
        return self

    def reset_out_keys(self) -> Self:
        """Return all outputs again."""
        self._selected = None
        return self

    def reset_parameters_recursive(self) -> None:
        """Give the networks new initial parameters, and target networks those of the networks that they follow.

        By ``reset_parameters`` of the layers; parameters of modules without that method stay as they are, and a warning
        names them.
        """
        kept: list[str] = []
        for name, network in self.named_children():
            for path, part in network.named_modules(prefix=name):
                reset: Any = getattr(part, "reset_parameters", None)
                if reset is not None:
                    reset()
                elif not name.startswith("target_") and any(True for _ in part.parameters(recurse=False)):
                    kept.append(f"{path} ({type(part).__name__})")
        if kept:
            issue_warning(
                f"{type(self).__name__}.reset_parameters_recursive left the parameters of {', '.join(kept)} as they"
                " are: these modules have no reset_parameters()"
            )
        networks = dict(self.named_children())
        for name, network in networks.items():
            target = networks.get(f"target_{name}")
            if target is not None:
                target.load_state_dict(network.state_dict())

    def _to_networks(self, value: Tensor) -> Tensor:
        """Return a tensor of the loss itself on the device of its networks, where the batches are."""
        parameter = next(self.parameters(), None)
        return value if parameter is None else value.to(parameter.device)

    def __call__(self, tensordict: TensorDictBase | None = None, **tensors: Tensor) -> Any:
        """Compute the losses of a batch, or of tensors by keyword: ``loss(observation=..., next_reward=...)``.

        Keywords are the keys that the loss reads, the parts of a nested key joined by ``_``.

        Args:
            tensordict: Batch ``[*B]``.
            tensors: Entries of a batch, in place of it. Its shape is that of an entry whose shape after ``[*B]`` is in
                the contract; without any it is the first dimension.

        Returns:
            The TensorDict of `forward`; for keywords a tuple in the order of `out_keys`, or the only output itself.

        Raises:
            UnknownArgumentError: If both or neither are given, or a keyword is not read.
        """
        if tensordict is not None and not tensors:
            with profiled(type(self).__name__):
                out = super().__call__(tensordict)
            return out if self._selected is None else out.select(*self._selected)
        if tensordict is not None or not tensors:
            given = f"a batch and {', '.join(tensors)}" if tensors else "no batch"
            raise UnknownArgumentError(
                f"{type(self).__name__} got {given}: pass a TensorDict, or its entries by keyword, one of both"
            )
        out = super().__call__(self._batch_of(tensors))
        selected = self.contract.out_keys if self._selected is None else self._selected  # out_keys may be of the class
        found = tuple(out.get(key) for key in selected)
        return found[0] if len(found) == 1 else found

    def _batch_of(self, tensors: dict[str, Tensor]) -> TensorDict:
        """Return the batch of tensors by keyword."""
        named = {"_".join(as_tuple(key.name)): key for key in self.derived().reads}
        for name in tensors:
            if name not in named:
                close = nearest(name, named)
                hint = "" if close is None else f"; did you mean {close!r}?"
                raise UnknownArgumentError(
                    f"{type(self).__name__} reads no {name!r}; it reads {', '.join(named)}{hint}"
                )
        inner = ((tensors[name], key.shape) for name, key in named.items() if name in tensors)
        sizes = (value.shape[: value.ndim - len(shape)] for value, shape in inner if shape is not None)
        size = next(sizes, next(iter(tensors.values())).shape[:1])
        td = TensorDict({}, batch_size=size)
        for name, value in tensors.items():
            td.set(named[name].name, value)
        return td

    def __getattr__(self, name: str) -> Any:
        networks, wanted = self.__dict__.get("_modules", {}), name.removesuffix("_params")
        if wanted != name:
            network, trained = networks.get(wanted), networks.get(wanted.removeprefix("target_"))
            if network is not None:
                return TensorDict.from_module(network, as_module=True)
            if trained is not None:
                return TensorDict.from_module(trained).data
        return super().__getattr__(name)

    @abstractmethod
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the losses of a batch.

        Args:
            tensordict: Batch ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If shapes do not agree.
        """

    def read(self, tensordict: TensorDictBase, contract: Contract | None = None) -> tuple[Entries, Tensor | None]:
        """Read the entries of the contract, by key, and the mask ``[*B]`` of steps that count (None: all do).

        Those are valid steps, and in windows of a replay buffer those of the learning part: networks and returns read
        burn-in and bootstrap rows too.

        For a group of agents with ``(group, "mask")`` the mask is ``[*B, n_agents]``, and true for those that act.
        Optional entries are included if the batch has them. Padding is replaced by the first valid step, so that NaN
        there reaches no gradient. Networks read 0 in place of the observations and actions of agents that do not act,
        unless they are recurrent. The order of steps is checked for recurrent networks.

        Args:
            tensordict: Batch ``[*B]``.
            contract: Contract in place of that of the loss.

        Raises:
            ContractError: If a key that is read is absent, or a recurrent state would leak.
            ShapeError: If the batch is empty and reduced to a mean, or the mask has another shape.
        """
        self.derived()
        reader = self._reader if contract is None else BatchReader(contract, self._keys, type(self).__name__)
        return self._read(tensordict, reader)

    def _read(self, td: TensorDictBase, reader: BatchReader, *, counted: bool = True) -> tuple[Entries, Tensor | None]:
        """Return what `read` does.

        Args:
            td: Batch ``[*B]``.
            reader: Reader of the entries.
            counted: Whether this is a call of training, for the warning about target networks.
        """
        if self.reduction == "mean" and not td.batch_size.numel():
            raise ShapeError(f"{type(self).__name__} got a batch without rows, which has no mean: skip it")
        entries = reader.read(td)
        mask, learned = reader.step_masks(td)
        if self._states and self._order.compares(next(iter(entries.values()))):
            check_sequences(td, self._states, type(self).__name__, done_key=self._keys["done"])
        if mask is not None:
            entries = dict(zip(entries, replace_padding([*entries.values()], mask), strict=True))
        if self._agents is not None:
            entries, mask = self._agents.mask_entries(td, entries, mask, recurrent=bool(self._states))
        if learned is not None:
            mask = learned if mask is None else mask & expand_right(learned, mask)
        # A compiled loss would be compiled again for each number of calls.
        if counted and not self._target_watch.over and not torch.compiler.is_compiling():
            self._target_watch.count(self)
        return entries, mask

    def _optional(self, tensordict: TensorDictBase, entries: Entries, name: str) -> Tensor | None:
        """Return an optional entry that `read` returned, by the name of its key; None if it is an observation."""
        key = self._keys[name]
        return entries[key] if key in entries and entry_of_loss(tensordict, key) is not None else None

    def _agent_masks(self) -> AgentMasks | None:
        group = group_of(self._keys.get("action", ""))
        if not group:
            return None
        action, inputs = self._keys["action"], self.network_inputs
        return AgentMasks(group, self._keys, type(self).__name__, action=action, network_inputs=inputs)

    def set_keys(self, **names: Any) -> None:
        super().set_keys(**names)
        for estimator in self._estimators:
            self._name_keys(estimator)
        self._derived_from = None
        self.derive_early()

    def _name_keys(self, estimator: ValueEstimatorBase) -> None:
        """Set the keys of the loss in an estimator."""
        known = estimator.named_keys
        estimator.set_keys(**{name: key for name, key in self._keys.items() if name in known})

    def _estimator_networks(self) -> dict[str, nn.Module]:
        """Return the networks that the estimator evaluates: ``value_network``, ``actor_network``; none by default."""
        return {}

    def _update_networks(self) -> None:
        networks = self._estimator_networks()
        for estimator in self._estimators:
            for role, before in self._networks_before.items():
                if networks[role] is not before and getattr(estimator, role, None) is before:
                    setattr(estimator, role, networks[role])
        self._networks_before = networks

    def make_value_estimator(
        self, value_type: ValueEstimators | str | ValueEstimatorBase | None = None, **arguments: Any
    ) -> ValueEstimatorBase:
        """Set the value estimator of the loss.

        Args:
            value_type: Name of an estimator, or an estimator, which keeps its keys; the loss's default if None.
            arguments: Arguments of the constructor (``gamma``, ``lmbda``, ...).

        Returns:
            The estimator. Later calls of `set_keys` apply to it, too.

        Raises:
            UnknownComponentError: If no estimator has that name.
            ArgumentError: If an argument is out of its range.
            UnsupportedError: If the loss cannot use that estimator; it is a `SpecError` and a `NotImplementedError`.
        """
        if not isinstance(value_type, ValueEstimatorBase):
            estimator = self._make_estimator(value_type or self.default_value_estimator, arguments)
            self._name_keys(estimator)
        elif arguments:
            raise ArgumentError(
                f"{type(self).__name__}.make_value_estimator got an estimator and {', '.join(arguments)}:"
                " pass these to the estimator's constructor"
            )
        else:
            estimator = value_type
        self._check_estimator(estimator)
        self._estimators = [estimator]
        self._derived_from = None
        self.derive_early()
        return estimator

    def _make_estimator(self, kind: ValueEstimators | str, arguments: dict[str, Any]) -> ValueEstimatorBase:
        make, networks = estimator_class(kind), self._estimator_networks()
        if not getattr(make, "needs_actor", False):
            networks.pop("actor_network", None)
        elif "actor_network" not in {**networks, **arguments}:
            raise UnsupportedError(
                f"{type(self).__name__} cannot use {make.__name__}, which needs log-probabilities of a policy that"
                " this loss does not have; take another estimator, such as TD0 or TDLambda"
            )
        parameters: dict[str, Any] = {**networks, **arguments}
        return make(**parameters)

    def _check_estimator(self, estimator: ValueEstimatorBase) -> None:
        """Raise if the loss cannot use the estimator."""

    @property
    def value_estimator(self) -> ValueEstimatorBase | None:
        """The value estimator; None if none was set."""
        return self._estimators[0] if self._estimators else None

    def named_parameters(
        self,
        prefix: str = "",
        recurse: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        remove_duplicate: bool = True,  # noqa: FBT001, FBT002 - torch's signature
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Return all parameters except those of target networks."""
        start = f"{prefix}." if prefix else ""
        targets = tuple(f"{start}{name}." for name, _ in self.named_children() if name.startswith("target_"))
        for name, parameter in super().named_parameters(prefix, recurse, remove_duplicate):
            if not name.startswith(targets):
                yield name, parameter
