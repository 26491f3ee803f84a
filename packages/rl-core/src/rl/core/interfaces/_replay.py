"""Storages, samplers and writers of replay buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["Sampler", "Storage", "Writer"]


class Storage(Protocol):
    """Rows of experience by index. The first batch fixes what a row looks like."""

    @property
    def max_size(self) -> int:
        """Capacity in rows."""
        ...

    def __len__(self) -> int: ...
    def count(self, data: Any) -> int:
        """Number of rows in a batch; does not compare them with what is stored.

        Raises:
            RLError: if `data` is no batch of rows.
        """
        ...

    def get(self, index: Tensor | int | slice) -> Any:
        """The rows under `index`, stacked or as a list; one row for an int. A copy, never a view.

        Raises:
            IndexError: if an index is outside of what is stored.
        """
        ...

    def set(self, index: Tensor | int | slice, data: Any) -> None:
        """Write rows. Everything is checked before anything is written.

        Raises:
            RLError: if a key is missing or new, a shape or dtype differs, or the numbers of rows and indices do.
            IndexError: if an index is outside ``[0, max_size)``, or rows before it would stay unwritten.
        """
        ...

    def empty(self) -> None:
        """Forget the rows; what a row looks like stays fixed."""
        ...

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Sampler(Protocol):
    """Chooses which rows of a storage make a batch."""

    @property
    def ran_out(self) -> bool:
        """Whether the last draw ended a pass over the storage; false for draws with replacement."""
        ...

    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Indices ``[batch_size]`` int64, and what else is known about them (``priority_weight``, ...).

        The last batch of a pass may be smaller. All randomness comes from `generator`, or from the global
        one if it is None.

        Raises:
            ContractError: if the storage is empty or `batch_size` is below 1.
        """
        ...

    def extended(self, index: Tensor, data: Any) -> None:
        """Rows `index` were just written with `data`."""
        ...

    def update_priority(self, index: Tensor, priority: Tensor) -> None:
        """New priorities; a sampler without priorities refuses.

        Raises:
            ContractError: if there are no priorities.
        """
        ...

    def restart(self) -> None:
        """Begin a new pass with the next draw; nothing for draws with replacement."""
        ...

    def empty(self) -> None:
        """The storage was emptied: forget what is known about rows."""
        ...

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Writer(Protocol):
    """Chooses where new rows go."""

    def claim(self, storage: Storage, count: int) -> Tensor:
        """Indices ``[count]`` int64, all different, for `count` new rows; moves nothing.

        Raises:
            RLError: if the rows cannot be placed.
        """
        ...

    def extended(self, index: Tensor, data: Any) -> None:
        """Rows were just written at the claimed `index`: move on."""
        ...

    def empty(self) -> None:
        """The storage is about to be emptied: start again, or refuse."""
        ...

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
