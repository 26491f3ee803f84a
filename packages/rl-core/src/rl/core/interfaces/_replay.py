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
    """Selects the rows of a batch.

    These methods are optional, and looked up by name. A buffer calls them in this order:

    - ``attach(storage)``: when the buffer is constructed and after a state was loaded;
    - ``admit(data)``: before a batch is written; raises if the sampler cannot use it;
    - ``postprocess(data, info)``: after the rows of a sample were gathered and collated; returns the batch. `info` is
      that of `sample` with ``index``; the method may change both, and what it leaves in `info` is returned to the user.
      Without it, a `TensorDictReplayBuffer` writes each tensor of `info` into the batch;
    - ``prepare_load(state, rows, max_size)``: validates a state for a storage with `rows` rows and returns the function
      that applies it.

    The info of a sample is plain data: tensors, numbers, strings. If it has ``runs``, int64 ``[m]``, the sample is m
    runs of equally many adjacent rows that begin there, and the buffer may copy whole runs.

    Example:
        >>> import torch
        >>> class Newest:  # the last rows; together with the other methods of the protocol
        ...     def sample(self, storage, batch_size, *, generator=None):
        ...         rows = torch.arange(len(storage) - batch_size, len(storage))
        ...         return rows, {"age": len(storage) - 1 - rows}
        ...
        ...     def postprocess(self, data, info):
        ...         return data.set("age", info["age"])
        >>> index, info = Newest().sample(range(10), 3)
        >>> index, info["age"]
        (tensor([7, 8, 9]), tensor([2, 1, 0]))
    """

    @property
    def ran_out(self) -> bool:
        """Whether the last sample ended a pass over the storage; false with replacement."""
        ...

    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sample indices int64 ``[batch_size]``, and a dict with more about them (``priority_weight``, ...).

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
        """Begin a new pass with the next sample; do nothing with replacement."""
        ...

    def empty(self) -> None:
        """Reset the sampler after the storage was emptied."""
        ...

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Writer(Protocol):
    """Chooses where new rows go.

    Optional methods, looked up by name: ``attach(storage)``, which a buffer calls when it is constructed and after a
    state was loaded; ``select(storage, data)``, called before each `claim`, which returns the positions int64 ``[m]``
    of the rows of a batch that are written, so that `claim` is called for these alone.
    """

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
