"""The base class of losses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.core.contract import Contract
from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.core.recurrent import State
from rl.core.sequences import check_sequences
from rl.objectives._batch.mask import MASK, counted_steps, without_padding
from rl.objectives._networks.keyed_module import KeyedModule
from rl.objectives.estimators._base import ValueEstimatorBase
from rl.objectives.estimators._kinds import ValueEstimators, estimator_class
from rl.objectives.functional._regression import check_reduction, refuse_empty

__all__ = ["Entries", "LossModule"]

Entries = dict[NestedKey, Tensor]


class LossModule(KeyedModule):
    """Reads a batch, returns scalars: what is to be minimized starts with ``loss``, the rest is detached.

    A loss holds the networks that it is given, not copies: an optimizer of ``loss.parameters()`` or of the networks'
    own does the same. A network that only follows another one is held as ``target_NAME`` next to ``NAME``: it is part
    of ``state_dict()``, but not of ``parameters()``, since nothing trains it.

    A subclass writes `default_keys`, `_derive`, which returns the contract, and `forward`, which reads entries with
    `read`. See docs/howto/losses.md for a whole one.

    Args:
        reduction: ``"mean"`` (None means that, too), ``"sum"`` or ``"none"`` over the batch.

    Raises:
        SpecError: if the reduction is another one.
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {"done": "done", "mask": MASK}
    default_value_estimator: ClassVar[ValueEstimators] = ValueEstimators.TD0

    def __init__(self, *, reduction: str | None = "mean") -> None:
        super().__init__()
        self.reduction = check_reduction(reduction, type(self).__name__)
        self._estimators: list[ValueEstimatorBase] = []  # in a list: its networks are not held twice
        self._networks_before: dict[str, nn.Module] = {}
        self._states: tuple[State, ...] = ()

    @abstractmethod
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the losses of a batch.

        Args:
            tensordict: the batch, ``[*B]``.

        Raises:
            ContractError: if a key that is read is absent.
            ShapeError: if shapes do not agree.
        """

    def read(self, tensordict: TensorDictBase, contract: Contract | None = None) -> tuple[Entries, Tensor | None]:
        """The entries of the contract by key, and the mask ``[*B]`` of valid steps (None: all are).

        Optional entries are there if the batch has them. Padding is replaced by the first valid step, so that nothing
        that it holds enters the arithmetic; sequences of recurrent networks are checked.

        Args:
            tensordict: the batch, ``[*B]``.
            contract: what is read, if not the loss's own.

        Raises:
            ContractError: if a key that is read is absent, or a recurrent state would leak.
            ShapeError: if the batch is empty and reduced to a mean, or the mask has another shape.
        """
        who = type(self).__name__
        contract = contract or self.derived()
        refuse_empty(who, tensordict.batch_size, self.reduction)
        mask = counted_steps(tensordict, self._keys["mask"], who)
        found: Entries = dict(zip(contract.in_keys, contract.read(tensordict, self), strict=True))
        for key in contract.reads:
            if key.optional and (leaf := tensordict.get(key.name, None)) is not None:
                found[key.name] = leaf
        if self._states:
            check_sequences(tensordict, self._states, who, done_key=self._keys["done"])
        if mask is not None:
            found.pop(self._keys["mask"], None)
            found = dict(zip(found, without_padding([*found.values()], mask), strict=True))
        return found, mask

    def set_keys(self, **names: Any) -> None:
        super().set_keys(**names)
        for estimator in self._estimators:
            self._name_keys(estimator)
        self._derived_from = None
        self.derive_early()

    def _name_keys(self, estimator: ValueEstimatorBase) -> None:
        """Let an estimator use the keys of the loss."""
        known = estimator.named_keys
        estimator.set_keys(**{name: key for name, key in self._keys.items() if name in known})

    def _estimator_networks(self) -> dict[str, nn.Module]:
        """The networks that the estimator evaluates: ``value_network``, ``actor_network``; none by default."""
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
        if not isinstance(value_type, ValueEstimatorBase):
            estimator = self._make_estimator(value_type or self.default_value_estimator, arguments)
            self._name_keys(estimator)
        elif arguments:
            raise SpecError(
                f"{type(self).__name__}.make_value_estimator got an estimator and {', '.join(arguments)}:"
                " give these to the estimator's constructor"
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
            raise SpecError(
                f"{type(self).__name__} cannot use {make.__name__}, which needs log-probabilities of a policy that"
                " this loss does not have; take another estimator, such as TD0 or TDLambda"
            )
        parameters: dict[str, Any] = {**networks, **arguments}
        return make(**parameters)

    def _check_estimator(self, estimator: ValueEstimatorBase) -> None:
        """Refuse an estimator that the loss cannot use."""

    @property
    def value_estimator(self) -> ValueEstimatorBase | None:
        """How values are estimated; None if nothing was chosen."""
        return self._estimators[0] if self._estimators else None

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
