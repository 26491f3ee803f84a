"""Base of losses and estimators: keys, and the contract that follows from keys and networks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rl.core.contract import Contract
from rl.core.errors import ContractError, UnknownNameError
from rl.core.keys import NEXT, NestedKey, as_tuple, key_str, nearest, unwrap
from rl.objectives._agents import AgentMasks
from rl.objectives._batch import BatchReader
from rl.objectives._networks import ActorCall, FrozenCall, HeadCall, KeyMismatchError, NetworkCall


class KeyedModule(nn.Module, ABC):
    """Module whose contract and network calls are derived from its keys and networks.

    A subclass names its keys in `default_keys` and implements `_derive`, which runs at the first use, and again after
    `set_keys` or after a network or one of `_options` was replaced. `derive_early` as the last line of ``__init__``
    raises for a network that does not fit, and lets `torch.compile` trace the first call.
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {}
    _options: ClassVar[tuple[str, ...]] = ()
    """Attributes other than networks on which the contract depends."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: dict[str, Any] = dict(self.default_keys)
        self._derived_from: tuple[Any, ...] | None = None
        self._contract = Contract()
        self._agents: AgentMasks | None = None
        """Masks of the group of agents that the keys are in; None for a single agent."""

    @abstractmethod
    def _derive(self) -> Contract:
        """Build the `NetworkCall` and `ActorCall` attributes that `forward` uses, and return the contract."""

    def _agent_masks(self) -> AgentMasks | None:
        """Build the masks of the group of agents that the keys are in; None for a single agent."""
        return None

    def _update_networks(self) -> None:
        """Pass replaced networks to the components that share them."""

    def derived(self) -> Contract:
        """Return the contract, derived again if keys, networks or options have changed since.

        Raises:
            ContractError: If a network does not write a key that is read.
        """
        found = (*self._modules.values(), *[getattr(self, name) for name in self._options])
        if self._derived_from != found:
            self._derive_again(found)
        return self._contract

    @torch.compiler.disable(reason="read its contract once before it is compiled")  # pyright: ignore[reportUntypedFunctionDecorator] - torch does not type it
    def _derive_again(self, found: tuple[Any, ...]) -> None:
        self._derived_from = None
        self._update_networks()
        self._agents = self._agent_masks()
        self._reader = BatchReader(Contract(), self._keys, type(self).__name__)  # of masks, if `_derive` raises
        self._contract = self._derive()
        self._reader = BatchReader(self._contract, self._keys, type(self).__name__)
        self._derived_from = found

    def derive_early(self) -> None:
        """Derive the contract now; a network with other keys raises at the first use, `set_keys` may still name them.

        Raises:
            ContractError: If a network does not fit in another respect.
        """
        try:
            self.derived()
        except KeyMismatchError:
            self._derived_from = None

    @property
    def contract(self) -> Contract:
        """Keys that are read and written."""
        return self.derived()

    @property
    def in_keys(self) -> list[NestedKey]:
        """Keys that must be in the batch, in order."""
        return self.contract.in_keys

    @property
    def out_keys(self) -> list[NestedKey]:
        """Keys that are written or returned, in order."""
        return self.contract.out_keys

    @property
    def named_keys(self) -> dict[str, Any]:
        """Key of each name that `set_keys` takes."""
        return dict(self._keys)

    @property
    def tensor_keys(self) -> SimpleNamespace:
        """`named_keys` as attributes."""
        return SimpleNamespace(**self._keys)

    def set_keys(self, **names: Any) -> None:
        """Read and write other keys than the default ones.

        Args:
            names: Key for each name; keys below ``next`` are given without it.

        Raises:
            ContractError: If a key starts with ``next``; nothing is changed then.
            UnknownNameError: If a name is unknown; it is a `ContractError` and a `ValueError`.
        """
        for name, key in names.items():
            if name not in self._keys:
                close = nearest(name, self._keys)
                hint = f"; did you mean {close!r}?" if close is not None else ""
                known = ", ".join(self._keys)
                raise UnknownNameError(f"{type(self).__name__} has no key {name!r}; it has {known}{hint}")
            if not isinstance(key, list) and as_tuple(key)[0] == NEXT:
                raise ContractError(
                    f"{type(self).__name__} adds 'next' itself: pass {name}={key_str(unwrap(as_tuple(key)[1:]))}"
                )
        new: dict[str, Any] = {}
        for name, key in names.items():  # one key of a composite action is a list of one
            several = isinstance(key, list) or isinstance(self._keys[name], list)
            new[name] = [unwrap(one) for one in (key if isinstance(key, list) else [key])] if several else unwrap(key)
        self._keys = {**self._keys, **new}
        self._derived_from = None
        self.derive_early()

    def __getstate__(self) -> dict[str, Any]:
        # Network calls hold the networks of the original; a copy builds its own.
        calls = NetworkCall | ActorCall | HeadCall | FrozenCall
        state = {k: v for k, v in super().__getstate__().items() if not isinstance(v, calls)}
        return {**state, "_derived_from": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.derive_early()


def as_list(keys: Any) -> list[NestedKey]:
    """Return a key, or a list of them, as a list.

    Example:
        >>> as_list("action"), as_list(["move", ("arm", "force")])
        (['action'], ['move', ('arm', 'force')])
    """
    return keys if isinstance(keys, list) else [keys]


def select_action(entries: Mapping[NestedKey, Tensor], keys: Any, batch_size: torch.Size) -> Any:
    """Select the tensor under a key, or a TensorDict of those under several, as a composite distribution scores it.

    Args:
        entries: Tensors by key.
        keys: A key or a list of keys.
        batch_size: Shape of the batch.

    Example:
        >>> select_action({"a": torch.ones(2), "b": torch.ones(2)}, ["a", "b"], torch.Size([2])).sorted_keys
        ['a', 'b']
    """
    if not isinstance(keys, list):
        return entries[keys]
    td = TensorDict({}, batch_size=batch_size)
    for key in as_list(keys):
        td.set(key, entries[key])
    return td


def sum_log_probs(found: Tensor | TensorDictBase) -> Tensor:
    """Sum the log-probabilities or entropies of the actions of a step.

    Args:
        found: Log-probability or entropy, ``[*B]``, or a TensorDict of such tensors.

    Example:
        >>> sum_log_probs(TensorDict(a_log_prob=torch.tensor([-1.0]), b_log_prob=torch.tensor([-2.0])))
        tensor([-3.])
    """
    if not isinstance(found, TensorDictBase):
        return found
    parts: list[Any] = list(found.values(include_nested=True, leaves_only=True))
    if len({part.shape for part in parts}) > 1:
        return torch.cat([part.reshape(*found.shape, -1) for part in parts], -1)  # the caller rejects the shape
    return torch.stack(parts).sum(0)
