"""Storage in a Python list, for rows of any type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from rl.core.errors import ContractError, ShapeError
from rl.core.keys import NestedKey
from rl.core.state import pack, reading, unpack
from rl.replay import _foreign
from rl.replay._arguments import Index, row_numbers, whole
from rl.replay._kinds import Kinds, is_batched
from rl.replay._layout import Layout, flatten
from rl.replay._state import Apply, Fields
from rl.replay.storages._rows import grown

__all__ = ["ListStorage"]


@_foreign.list_storage
class ListStorage:
    """Rows in a list: TensorDicts, tensorclasses, tensors or any object.

    Args:
        max_size: capacity in rows.
        ragged: rows may differ in keys, shapes and dtypes. Otherwise the first row fixes them, and a row that
            differs is refused before anything is written.

    A batch is a TensorDict, tensorclass or tensor ``[n, ...]``, which is cut into n rows, or a list of n rows. `get`
    returns a list for a tensor or a slice; the buffer's `collate_fn` makes a batch of it.

    Example:
        >>> storage = ListStorage(10)
        >>> storage.set(torch.arange(2), ["left", "right"])
        >>> storage.get(torch.tensor([1, 1, 0]))
        ['right', 'right', 'left']
    """

    def __init__(self, max_size: int = 1000, *, ragged: bool = False) -> None:
        size = whole(max_size)
        if size is None:
            raise ShapeError(f"{type(self).__name__}: max_size must be an integer of at least 1, got {max_size!r}")
        self.max_size: Final = size
        self.ragged: Final = ragged
        self._layout: Layout | None = None
        self._rows: list[Any] = []
        self._revision = 0

    @property
    def revision(self) -> int:
        """Number of writes and removals; a slice sampler detects changes of its rows by it."""
        return self._revision

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        kind = type(self._rows[0]).__name__ if self._rows else "nothing yet"
        return f"{type(self).__name__}({len(self)} of {self.max_size} rows of {self._layout or kind})"

    def count(self, data: Any) -> int:
        """Number of rows in `data`.

        Raises:
            ContractError: if `data` is neither list, TensorDict, tensorclass nor tensor.
            ShapeError: if it has no leading dimension.
        """
        self._check_type(data)
        return len(data)

    def __getitem__(self, index: Index) -> Any:
        """The same as `get`."""
        return self.get(index)

    def __iter__(self) -> Iterator[Any]:
        """All rows, one by one."""
        return (self.get(row) for row in range(len(self)))

    def get(self, index: Index) -> Any:
        """A list of copies of the rows under `index`, or one row for an int.

        Lists, ranges and arrays count as tensors of indices.

        Raises:
            IndexError: if an index is outside of the stored rows.
        """
        if isinstance(index, slice):
            return [_copy(row) for row in self._rows[index]]
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"ListStorage: index {index} is outside [0, {len(self)})")
            return _copy(self._rows[index])
        if not isinstance(index, Tensor) or index.dtype is torch.bool:
            index = row_numbers("ListStorage", index, len(self))
        rows: list[int] = index.reshape(-1).tolist()
        for row in rows:
            if not 0 <= row < len(self):
                raise IndexError(f"ListStorage: index {row} is outside [0, {len(self)})")
        return [_copy(self._rows[row]) for row in rows]

    def set(self, index: Index, data: Any) -> None:
        """Write rows. Everything is checked before anything is written.

        Raises:
            ContractError: if a key is missing or new.
            SpecError: if a dtype differs.
            ShapeError: if a shape differs, or there are not as many rows as indices.
            IndexError: if an index is negative, beyond the capacity or would leave a gap.
        """
        if isinstance(index, int):
            index, data = torch.tensor([index], device="cpu"), [data]
        elif not isinstance(index, Tensor) or index.dtype is torch.bool:
            index = row_numbers("ListStorage", index, self.max_size)
        rows, layout = self._checked(data)
        if index.numel() != len(rows):
            raise ShapeError(f"ListStorage: {index.numel()} indices for {len(rows)} rows")
        length = grown("ListStorage", index, len(self), self.max_size)
        self._layout = layout
        self._rows.extend([None] * (length - len(self._rows)))
        where: list[int] = index.reshape(-1).tolist()
        for position, row in zip(where, rows, strict=True):
            self._rows[position] = _copy(row)
        self._revision += 1

    def columns(self, keys: Iterable[NestedKey], index: Tensor | None = None) -> dict[NestedKey, Tensor]:
        """Some entries of the rows under `index` ``[*n]``, or of all rows; entries that a row lacks are omitted."""
        rows = self._rows if index is None else [self._rows[row] for row in index.reshape(-1).tolist()]
        shape = (len(rows),) if index is None else tuple(index.shape)
        found: dict[NestedKey, Tensor] = {}
        for key in keys:
            cells = [row.get(key, None) if is_batched(row) and not isinstance(row, Tensor) else None for row in rows]
            tensors = [cell for cell in cells if isinstance(cell, Tensor)]
            if tensors and len(tensors) == len(rows):
                found[key] = torch.stack(tensors).reshape(*shape, *tensors[0].shape)
        return found

    def empty(self) -> None:
        """Remove all rows; keys, shapes and dtypes stay fixed."""
        self._rows.clear()
        self._revision += 1

    def state_dict(self) -> dict[str, Any]:
        """The rows, as tensors and plain containers.

        Raises:
            CheckpointError: if a row is neither TensorDict nor plain data.
        """
        rows = pack(self._rows, "ListStorage: a row")
        layout = None if self._layout is None else self._layout.state()
        return {"max_size": self.max_size, "ragged": self.ragged, "rows": rows, "layout": layout}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the rows by those of `state`.

        Raises:
            CheckpointError: if `state` is damaged, or the arguments differ. Nothing is changed then.
        """
        self.prepare_load(state)[1]()

    def prepare_load(self, state: Mapping[str, Any]) -> tuple[int, Apply]:
        """Validate a state without applying it: its number of rows, and the function that applies it.

        Raises:
            CheckpointError: see `load_state_dict`.
        """
        owner = type(self).__name__
        with reading(owner):
            fields = Fields(owner, state, ("max_size", "ragged", "rows", "layout"))
            fields.match(max_size=self.max_size, ragged=self.ragged)
            rows: list[Any] = unpack(fields.items("rows"), owner)
            layout = None if fields["layout"] is None else Layout.from_state(fields["layout"])
            if len(rows) > self.max_size or (layout is not None and self.ragged):
                fields.fail(f"it has {len(rows)} rows of {layout}")
            for row in [] if self.ragged else rows:
                if is_batched(row) != (layout is not None):
                    fields.fail(f"a row is a {type(row).__name__}, and its layout is {layout}")
                if layout is not None:
                    layout.check(flatten(row.unsqueeze(0), 1), owner)

        def apply() -> None:
            self._rows, self._layout = rows, layout
            self._revision += 1

        return len(rows), apply

    def _checked(self, data: Any) -> tuple[list[Any], Layout | None]:
        self._check_type(data)
        rows: list[Any] = list(data.unbind(0)) if is_batched(data) else list(data)
        if not rows:
            raise ShapeError("ListStorage: a batch without rows")
        layout = self._layout
        if self.ragged:
            return rows, layout
        for row in rows:
            layout = self._check_row(row, layout)
        return rows, layout

    def _check_type(self, data: Any) -> None:
        if isinstance(data, (list, tuple)):
            return
        if not is_batched(data):
            raise ContractError(
                f"{type(self).__name__} takes a batch of rows (list, TensorDict, tensorclass or tensor), got"
                f" {type(data).__name__}; `add` takes a single row"
            )
        if not data.shape:
            raise ShapeError(f"{type(self).__name__}: a batch needs a leading dimension; `add` takes a single row")

    def _check_row(self, row: Any, layout: Layout | None) -> Layout | None:
        if not is_batched(row):
            if layout is not None:
                raise ContractError(
                    f"ListStorage holds TensorDicts or tensors, got {type(row).__name__}; use ListStorage("
                    "ragged=True) for rows that differ"
                )
            return None
        if layout is None and self._rows:
            raise ContractError(
                f"ListStorage holds objects such as {type(self._rows[0]).__name__}, got {type(row).__name__}; "
                "use ListStorage(ragged=True) for rows that differ"
            )
        batch, kinds = row.unsqueeze(0), Kinds()
        layout = layout or Layout.of(batch)
        layout.check(flatten(batch, 1, kinds), "ListStorage", kinds)
        return layout


def _copy(row: Any) -> Any:
    return row.detach().clone() if is_batched(row) else row
