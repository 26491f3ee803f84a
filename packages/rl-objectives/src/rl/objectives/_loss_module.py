"""What all losses share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from tensordict import TensorDictBase
from torch import nn

from rl.core.contract import Contract
from rl.core.errors import ContractError, SpecError
from rl.core.keys import NestedKey, nearest, unwrap
from rl.objectives.value._estimator import ValueEstimatorBase
from rl.objectives.value._kinds import ValueEstimators, estimator_class

__all__ = ["LossModule"]

_OF_ESTIMATOR = (
    "value",
    "reward",
    "done",
    "terminated",
    "advantage",
    "value_target",
    "mask",
    "action",
    "sample_log_prob",
)


class LossModule(nn.Module, ABC):
    """Reads a batch, returns scalars: what is to be minimized starts with ``loss``, the rest is detached.

    A loss holds the networks that it is given, not copies: an optimizer of ``loss.parameters()`` or of the networks'
    own does the same. A network that only follows another one is held as ``target_NAME`` beside ``NAME``: it is part of
    ``state_dict()``, but not of ``parameters()``, since nothing trains it.

    A subclass sets `_defaults`, holds its networks, implements `_prepare` (which sets `contract` and derives whatever a
    call needs) and `forward`, and calls `_prepare` at the end of its constructor.
    """

    contract: Contract
    _defaults: ClassVar[dict[str, NestedKey]] = {}
    _default_estimator: ClassVar[ValueEstimators] = ValueEstimators.TD0
    _derived: ClassVar[tuple[str, ...]] = ()
    """Attributes that `_prepare` derives from the networks; neither copied nor pickled."""
    _decisive: ClassVar[tuple[str, ...]] = ()
    """Arguments on which it depends which keys are read: setting one prepares the loss anew, as a new network does."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: dict[str, NestedKey] = dict(self._defaults)
        self._estimators: list[ValueEstimatorBase] = []  # in a list: its networks are not held twice

    @abstractmethod
    def _prepare(self) -> None:
        """Derive from keys and networks what a call needs."""

    @property
    def in_keys(self) -> list[NestedKey]:
        """Keys that must be in the batch, in order."""
        return self.contract.in_keys

    @property
    def out_keys(self) -> list[NestedKey]:
        """Keys that are returned, in order."""
        return self.contract.out_keys

    def set_keys(self, **names: NestedKey) -> None:
        """Read or write other keys than the usual ones.

        Args:
            names: what is meant, and the key that holds it; what comes from a step's outcome without its ``next``.

        Raises:
            ContractError: if the loss has no such name.
        """
        for name in names:
            if name not in self._keys:
                close = nearest(name, self._keys)
                hint = f"; did you mean {close!r}?" if close is not None else ""
                raise ContractError(f"{type(self).__name__} has no key {name!r}; it has {', '.join(self._keys)}{hint}")
        before, of_estimators = self._keys, [(one, one.named_keys) for one in self._estimators]
        self._keys = {**before, **{name: unwrap(key) for name, key in names.items()}}
        try:
            for estimator in self._estimators:
                self._name_keys(estimator)
            self._prepare()
        except Exception:
            self._keys = before
            for estimator, keys in of_estimators:
                estimator.set_keys(**keys)
            self._prepare()
            raise

    def _name_keys(self, estimator: ValueEstimatorBase) -> None:
        """Let an estimator use the keys of the loss."""
        known = estimator.named_keys
        estimator.set_keys(**{name: self._keys[name] for name in _OF_ESTIMATOR if name in self._keys and name in known})

    def _estimator_network(self) -> nn.Module | None:
        """The network that the estimator evaluates; None if the loss does that itself."""
        return None

    def _estimator_actor(self) -> nn.Module | None:
        """The policy, for estimators that need its log-probabilities; None if the loss has none."""
        return None

    def make_value_estimator(
        self, value_type: ValueEstimators | str | ValueEstimatorBase | None = None, **arguments: Any
    ) -> ValueEstimatorBase:
        """Choose how the loss estimates values.

        Args:
            value_type: which; the loss's usual one if None; an estimator is taken as it is, with its keys.
            arguments: ``gamma``, ``lmbda``, ... of the estimator.

        Returns:
            The estimator; one made here has the keys of the loss, and any follows when these are set.

        Raises:
            UnknownComponentError: if no estimator has that name.
            SpecError: if an argument is out of its range, or the loss cannot use that estimator.
        """
        if isinstance(value_type, ValueEstimatorBase):
            if arguments:
                raise SpecError(
                    f"{type(self).__name__}.make_value_estimator got an estimator and {', '.join(arguments)}:"
                    " give these to the estimator's constructor"
                )
            estimator = value_type
        else:
            estimator = self._make_estimator(value_type or self._default_estimator, arguments)
            self._name_keys(estimator)
        self._accept(estimator)
        before, self._estimators = self._estimators, [estimator]
        try:
            self._prepare()
        except Exception:
            self._estimators = before
            self._prepare()
            raise
        return estimator

    def _make_estimator(self, kind: ValueEstimators | str, arguments: dict[str, Any]) -> ValueEstimatorBase:
        make = estimator_class(kind)
        network = self._estimator_network()
        if network is not None:
            arguments.setdefault("value_network", network)
        if getattr(make, "needs_actor", False) and "actor_network" not in arguments:
            actor = self._estimator_actor()
            if actor is None:
                raise SpecError(
                    f"{type(self).__name__} cannot use {make.__name__}, which needs log-probabilities of a policy that"
                    " this loss does not have; take another estimator, such as TD0 or TDLambda"
                )
            arguments["actor_network"] = actor
        return make(**arguments)

    def _accept(self, estimator: ValueEstimatorBase) -> None:
        """Refuse an estimator that the loss cannot use."""

    @property
    def value_estimator(self) -> ValueEstimatorBase | None:
        """How values are estimated; None if nothing was chosen."""
        return self._estimators[0] if self._estimators else None

    @abstractmethod
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the losses of a batch.

        Args:
            tensordict: the batch, ``[*B]``.

        Raises:
            ContractError: if a key that is read is absent.
            ShapeError: if shapes do not agree.
        """

    def named_parameters(
        self,
        prefix: str = "",
        recurse: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        remove_duplicate: bool = True,  # noqa: FBT001, FBT002 - torch's signature
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Those that are trained: all but the target networks'."""
        start = f"{prefix}." if prefix else ""
        targets = tuple(f"{start}{name}." for name, _ in self.named_children() if name.startswith("target_"))
        for name, parameter in super().named_parameters(prefix, recurse, remove_duplicate):
            if not name.startswith(targets):
                yield name, parameter

    def __setattr__(self, name: str, value: Any) -> None:
        if "contract" not in self.__dict__:
            super().__setattr__(name, value)
            return
        network: Any = self._modules.get(name)
        before: Any = getattr(self, name, None)
        super().__setattr__(name, value)
        if network is None and name not in self._decisive:
            return
        followers = [
            (one, role)
            for one in self._estimators
            for role in ("value_network", "actor_network")
            if network is not None and getattr(one, role, None) is network
        ]
        try:
            for estimator, role in followers:
                setattr(estimator, role, value)
            self._prepare()
        except Exception:
            # What is refused leaves the loss as it was.
            super().__setattr__(name, before)
            for estimator, role in followers:
                setattr(estimator, role, network)
            self._prepare()
            raise

    def __getstate__(self) -> dict[str, Any]:
        # What was derived from the networks would still call the original ones from a copy.
        return {name: value for name, value in super().__getstate__().items() if name not in self._derived}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._prepare()
