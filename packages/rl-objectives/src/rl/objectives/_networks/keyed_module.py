"""What losses and estimators derive from their keys and networks, when it is first needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import nn

from rl.core.contract import Contract
from rl.core.errors import ContractError
from rl.core.keys import NEXT, NestedKey, as_tuple, key_str, nearest, unwrap
from rl.objectives._networks.calls import ActorCall, KeyMismatchError, NetworkCall

__all__ = ["KeyedModule"]


class _DerivedEarly(type(ABC)):
    """Derives once an object is complete, so that a compiler finds it done; keys that are still wrong may be set."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        made.derive_early()
        return made


class KeyedModule(nn.Module, metaclass=_DerivedEarly):
    """A module whose contract and network calls follow from its keys and networks.

    A subclass names its keys in `default_keys` and implements `_derive`. That runs when the contract is first needed,
    and again after `set_keys` or after a network or one of `_options` was replaced.
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {}
    _options: ClassVar[tuple[str, ...]] = ()
    """Attributes besides networks on which the contract depends."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: dict[str, Any] = dict(self.default_keys)
        self._derived_from: tuple[Any, ...] | None = None
        self._contract = Contract()

    @abstractmethod
    def _derive(self) -> Contract:
        """Build what a call needs, `NetworkCall` and `ActorCall` attributes above all, and return the contract."""

    def _follow(self) -> None:
        """Hand networks that were replaced on to whatever shares them."""

    def derived(self) -> Contract:
        """The contract; derives it, and the calls, unless that was done for the present keys and networks.

        Raises:
            ContractError: if a network does not write what it has to.
        """
        found = (*self._modules.values(), *[getattr(self, name) for name in self._options])
        if self._derived_from != found:
            self._derive_again(found)
        return self._contract

    @torch.compiler.disable()  # pyright: ignore[reportUntypedFunctionDecorator] - torch does not type it
    def _derive_again(self, found: tuple[Any, ...]) -> None:
        self._derived_from = None
        self._follow()
        self._contract = self._derive()
        self._derived_from = found

    def derive_early(self) -> None:
        """Derive, unless a network writes other keys, which may be named yet: that is an error of the first use."""
        try:
            self.derived()
        except KeyMismatchError:
            self._derived_from = None

    @property
    def contract(self) -> Contract:
        """What is read and written."""
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
        """What `set_keys` can name, and the key that holds it."""
        return dict(self._keys)

    @property
    def tensor_keys(self) -> SimpleNamespace:
        """`named_keys` as attributes."""
        return SimpleNamespace(**self._keys)

    def set_keys(self, **names: Any) -> None:
        """Read or write other keys than the usual ones.

        Args:
            names: what is meant, and the key that holds it; keys that a step writes under ``next`` without it.

        Raises:
            ContractError: if there is no such name, or a key starts with ``next``; nothing is changed then.
        """
        for name, key in names.items():
            if name not in self._keys:
                close = nearest(name, self._keys)
                hint = f"; did you mean {close!r}?" if close is not None else ""
                raise ContractError(f"{type(self).__name__} has no key {name!r}; it has {', '.join(self._keys)}{hint}")
            if not isinstance(key, list) and as_tuple(key)[0] == NEXT:
                raise ContractError(
                    f"{type(self).__name__} adds 'next' itself: give {name}={key_str(unwrap(as_tuple(key)[1:]))}"
                )
        new = {name: [*map(unwrap, key)] if isinstance(key, list) else unwrap(key) for name, key in names.items()}
        self._keys = {**self._keys, **new}
        self._derived_from = None
        self.derive_early()

    def __getstate__(self) -> dict[str, Any]:
        # Calls hold the networks of the original: a copy builds its own.
        state = {k: v for k, v in super().__getstate__().items() if not isinstance(v, NetworkCall | ActorCall)}
        return {**state, "_derived_from": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.derive_early()
