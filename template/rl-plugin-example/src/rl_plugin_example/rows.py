"""Rows in one TensorDict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from rl.core.arguments import as_integer
from rl.core.errors import ContractError, SpecError
from rl.core.keys import leaf_keys
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

__all__ = ["RowStorage"]


class RowStorage:
    """Rows in a TensorDict ``[max_size, ...]`` that the first batch allocates.

    Args:
        max_size: Maximum number of rows.

    Raises:
        ArgumentError: If `max_size` is no integer above 0.

    Example:
        >>> storage = RowStorage(4)
        >>> storage.set(slice(0, 2), TensorDict(x=torch.arange(2), batch_size=[2]))
        >>> storage.get(1)["x"]
        tensor(1)
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = as_integer(max_size, "RowStorage", "max_size", least=1)
        self._rows: TensorDictBase | None = None
        self._written = 0

    @property
    def max_size(self) -> int:
        """Capacity in rows."""
        return self._max_size

    def __len__(self) -> int:
        return self._written

    def count(self, data: Any) -> int:
        """Count the rows of a batch.

        Raises:
            ContractError: If `data` is no batch of rows.
        """
        if not isinstance(data, TensorDictBase) or not data.batch_size:
            raise ContractError(f"RowStorage keeps TensorDicts with a batch, got {type(data).__name__}")
        return len(data)

    def get(self, index: Tensor | int | slice) -> Any:
        """Return copies of rows.

        Raises:
            IndexError: If an index is outside of what is stored.
        """
        if self._rows is None:
            raise IndexError("RowStorage is empty")
        if isinstance(index, slice):
            return self._rows[: self._written][index].clone()
        self._check_inside(index, self._written)
        return self._rows[index].clone()

    def set(self, index: Tensor | int | slice, data: Any) -> None:
        """Write rows; everything is checked before anything is written.

        Raises:
            ContractError: If a key is missing or new, or the numbers of rows and indices differ.
            SpecError: If a shape or dtype differs.
            IndexError: If an index is outside of the storage, or rows before it would stay unwritten.
        """
        index = torch.arange(self._max_size)[index] if isinstance(index, slice) else torch.as_tensor(index).reshape(-1)
        count = self.count(data)
        if count != len(index) or not count:
            raise ContractError(f"RowStorage got {count} rows at {len(index)} indices; expected one row for each")
        self._check_inside(index, self._max_size)
        new = index[index >= self._written].unique()
        if len(new) and (new[0] != self._written or new[-1] - new[0] != len(new) - 1):
            raise IndexError(f"RowStorage has {self._written} rows; rows {new.tolist()} would leave a gap")
        if self._rows is None:
            self._rows = data[:1].detach().clone().expand(self._max_size).clone()
        self._check_layout(data)
        self._rows[index] = data.detach()
        self._written += len(new)

    def _check_inside(self, index: Tensor | int, size: int) -> None:
        index = torch.as_tensor(index)
        outside = index[(index < 0) | (index >= size)]
        if outside.numel():
            raise IndexError(f"RowStorage: index {outside.flatten()[0].item()} is outside [0, {size})")

    def _check_layout(self, data: TensorDictBase) -> None:
        known, given = set(leaf_keys(self._rows)), set(leaf_keys(data))
        if known != given:
            raise ContractError(f"RowStorage keeps {sorted(map(str, known))}, got {sorted(map(str, given))}")
        for key in known:
            row, new = self._rows[key], data[key]
            if row.shape[1:] != new.shape[1:] or row.dtype != new.dtype:
                kept, got = (f"{one.dtype} {list(one.shape[1:])}" for one in (row, new))
                raise SpecError(f"RowStorage keeps {key!r} as {kept}, got {got}")

    def empty(self) -> None:
        """Remove all rows; the layout stays."""
        self._written = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the rows as tensors and plain containers."""
        rows = None if self._rows is None else self._rows[: self._written].clone().to_dict()
        return {"rows": rows, "written": self._written}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
        self._rows, self._written = None, 0
        if state["written"]:
            self.set(slice(0, state["written"]), TensorDict(state["rows"], batch_size=[state["written"]]))
