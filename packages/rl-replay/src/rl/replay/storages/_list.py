"""Storage in a Python list, for rows of any type."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NoReturn, final

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase
from torch import Tensor

from rl.core.arguments import as_integer, as_number, foreign_arguments
from rl.core.errors import ArgumentError, ContractError, ShapeError, SpecError
from rl.core.keys import NestedKey, key_str
from rl.core.state import pack, unpack
from rl.replay._arguments import Index, row_numbers
from rl.replay._kinds import NodeTypes, is_batched
from rl.replay._layout import Cells, Layout, flatten
from rl.replay._state import Fields, Stateful
from rl.replay.storages._rows import length_after_write


@foreign_arguments()
class ListStorage(Stateful):
    """Rows in a list: TensorDicts, tensorclasses, tensors or any object.

    Args:
        max_size: Capacity in rows.
        ragged: Whether rows may differ in keys, shapes and dtypes. Otherwise the first row fixes them, and a row that
            differs is rejected before anything is written.

    A batch is a TensorDict, tensorclass or tensor ``[n, ...]``, which is cut into n rows, or a list of n rows. `get`
    returns a list for a tensor or a slice; the buffer's `collate_fn` builds a batch of it.

    Example:
        >>> storage = ListStorage(10)
        >>> storage.set(torch.arange(2), ["left", "right"])
        >>> storage.get(torch.tensor([1, 1, 0]))
        ['right', 'right', 'left']
    """

    def __init__(self, max_size: int = 1000, *, ragged: bool = False) -> None:
        self.max_size: Final = as_integer(max_size, type(self).__name__, "max_size", 1)
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
        """Return the number of rows in `data`.

        Raises:
            ContractError: If `data` is neither list, TensorDict, tensorclass nor tensor.
            ShapeError: If it has no leading dimension.
        """
        self._check_type(data)
        return len(data)

    def __getitem__(self, index: Index) -> Any:
        """Return the rows under `index`; see `get`."""
        return self.get(index)

    def __iter__(self) -> Iterator[Any]:
        """All rows, one by one."""
        return (self.get(row) for row in range(len(self)))

    def get(self, index: Index) -> Any:
        """Return a list of copies of the rows under `index`, or one row for an int.

        Lists, ranges and arrays count as tensors of indices.

        Raises:
            IndexError: If an index is outside of the stored rows.
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
            ContractError: If a key is missing or new.
            SpecError: If a dtype differs.
            ShapeError: If a shape differs, or there are not as many rows as indices.
            IndexError: If an index is negative, beyond the capacity or would leave a gap.
        """
        if isinstance(index, int):
            index, data = torch.tensor([index], device="cpu"), [data]
        elif not isinstance(index, Tensor) or index.dtype is torch.bool:
            index = row_numbers("ListStorage", index, self.max_size)
        rows, layout = self._checked(data)
        if index.numel() != len(rows):
            raise ShapeError(f"ListStorage: {index.numel()} indices for {len(rows)} rows")
        length = length_after_write("ListStorage", index, len(self), self.max_size)
        self._layout = layout
        self._rows.extend([None] * (length - len(self._rows)))
        where: list[int] = index.reshape(-1).tolist()
        for position, row in zip(where, rows, strict=True):
            self._rows[position] = _copy(row)
        self._revision += 1

    def columns(self, keys: Iterable[NestedKey], index: Tensor | None = None) -> dict[NestedKey, Tensor]:
        """Return entries of the rows under `index` ``[*n]``, or of all rows; those that a row lacks are omitted."""
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
        """Return the rows, as tensors and plain containers.

        Raises:
            CheckpointError: If a row is neither TensorDict nor plain data.
        """
        rows = pack(self._rows, "ListStorage: a row")
        layout = None if self._layout is None else self._layout.state()
        return {"max_size": self.max_size, "ragged": self.ragged, "rows": rows, "layout": layout}

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:  # noqa: ARG002
        owner = type(self).__name__
        fields = Fields(owner, state, ("max_size", "ragged", "rows", "layout"))
        fields.match(max_size=self.max_size, ragged=self.ragged)
        self._rows = unpack(fields.items("rows"), owner)
        layout = self._layout = None if fields["layout"] is None else Layout.from_state(fields["layout"])
        if len(self) > self.max_size or (layout is not None and self.ragged):
            fields.fail(f"it has {len(self)} rows of {layout}")
        for row in [] if self.ragged else self._rows:
            if is_batched(row) != (layout is not None):
                fields.fail(f"a row is a {type(row).__name__}, and its layout is {layout}")
            if layout is not None:
                layout.check(flatten(row.unsqueeze(0), 1), owner)
        self._revision += 1

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
        batch, kinds = row.unsqueeze(0), NodeTypes()
        layout = layout or Layout.of(batch)
        layout.check(flatten(batch, 1, kinds), "ListStorage", kinds)
        return layout


def _copy(row: Any) -> Any:
    return row.detach().clone() if is_batched(row) else row


@final
@foreign_arguments()
class LazyStackStorage(ListStorage):
    """TensorDicts of different keys and shapes in a list; a batch is a lazy stack of rows, which are not joined.

    Args:
        max_size: Capacity in rows.
        ragged: True for rows that may differ; see `ListStorage`.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> storage = LazyStackStorage(10)
        >>> storage.set(torch.arange(2), [TensorDict(x=torch.zeros(3)), TensorDict(x=torch.zeros(5))])
        >>> [row["x"].shape for row in storage.get(torch.tensor([1, 0])).unbind(0)]
        [torch.Size([5]), torch.Size([3])]
    """

    def __init__(self, max_size: int = 1000, *, ragged: bool = True) -> None:
        super().__init__(max_size, ragged=ragged)

    def get(self, index: Index) -> Any:
        """Return a lazy stack ``[n]`` of copies of rows, or one row for an int; see `ListStorage.get`."""
        rows = super().get(index)
        if isinstance(rows, list) and rows and all(isinstance(row, TensorDictBase) for row in rows):
            return LazyStackedTensorDict(*rows, stack_dim=0)
        return rows


@final
@foreign_arguments()
class CompressedListStorage(ListStorage):
    """TensorDicts or tensors of equal shape in a list, each row compressed by itself.

    Args:
        max_size: Capacity in rows.
        compression_fn: Function that compresses the bytes of a row, such as ``lzma.compress``; zlib if None.
        decompression_fn: Inverse of `compression_fn`.
        compression_level: Level of zlib, from 0 (none) to 9 (smallest).

    Rows are on the CPU and are returned bit by bit, as one batch ``[n, ...]``. The first batch fixes keys, shapes and
    dtypes, and shows whether `decompression_fn` is the inverse. A state has the compressed rows: load it with the
    same functions.

    Raises:
        ArgumentError: If one function is given without the other, or the level is not from 0 to 9.

    Example:
        >>> storage = CompressedListStorage(10)
        >>> storage.set(torch.arange(2), torch.arange(6).reshape(2, 3))
        >>> storage.get(torch.tensor([1, 0]))
        tensor([[3, 4, 5],
                [0, 1, 2]])
        >>> storage.set(torch.arange(2, 4), torch.zeros(2, 4, dtype=torch.int64))
        Traceback (most recent call last):
        ...
        rl.core.errors.ShapeError: CompressedListStorage: the tensor was int64 [3] per row in the first batch, got ...
    """

    def __init__(
        self,
        max_size: int = 1000,
        *,
        compression_fn: Callable[[bytes], bytes] | None = None,
        decompression_fn: Callable[[bytes], bytes] | None = None,
        compression_level: int = 3,
    ) -> None:
        super().__init__(max_size)
        given: dict[str, Any] = {"compression_fn": compression_fn, "decompression_fn": decompression_fn}
        for name, function in given.items():
            if function is not None and not callable(function):
                raise ArgumentError(f"CompressedListStorage: {name} must be a function of bytes, got {function!r}")
        if (compression_fn is None) != (decompression_fn is None):
            raise ArgumentError(
                "CompressedListStorage: pass both compression_fn and decompression_fn, its inverse, or neither"
            )
        self.compression_level: Final = as_integer(compression_level, "CompressedListStorage", "compression_level", 0)
        as_number(self.compression_level, "CompressedListStorage", "compression_level", most=9)
        self._compress = compression_fn
        self._decompress: Callable[[bytes], bytes] = zlib.decompress if decompression_fn is None else decompression_fn

    @property
    def nbytes(self) -> int:
        """Bytes of the compressed rows."""
        return sum(map(len, self._rows))

    def get(self, index: Index) -> Any:
        """Return the rows under `index`, ``[n, ...]``; one row without that dimension for an int. A copy.

        Lists, ranges and arrays count as tensors of indices.

        Raises:
            ContractError: If nothing was written yet, or `decompression_fn` returns something else than the row.
            IndexError: If an index is outside of the stored rows.
        """
        layout = self._layout
        if layout is None:
            raise ContractError("CompressedListStorage is empty: write rows with `extend` before reading")
        shape: Sequence[int] = ()
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"CompressedListStorage: index {index} is outside [0, {len(self)})")
            rows = [index]
        else:
            if not isinstance(index, Tensor) or index.dtype is torch.bool:
                index = row_numbers("CompressedListStorage", index, len(self))
            rows, shape = self._numbers(index), index.shape
        cells = _taken_apart(layout, self._bytes(layout, rows), layout.columns)
        for key, cell in cells.items():
            cells[key] = cell.reshape((*shape, *cell.shape[1:]))
        return layout.build(cells, shape, torch.device("cpu"))

    def set(self, index: Index, data: Any) -> None:
        """Write rows. Everything is checked before anything is written.

        Raises:
            ContractError: If a key is missing or new, or the functions do not return bytes or are not inverse.
            SpecError: If a dtype differs, or an entry is no dense tensor with values.
            ShapeError: If a shape differs, or there are not as many rows as indices.
            IndexError: If an index is negative, beyond the capacity or would leave a gap.
        """
        if isinstance(index, int):
            index, data = torch.tensor([index], device="cpu"), [data]
        elif not isinstance(index, Tensor) or index.dtype is torch.bool:
            index = row_numbers("CompressedListStorage", index, self.max_size)
        cells, layout = self._cells(data)
        count = len(next(iter(cells.values())))
        if index.numel() != count:
            raise ShapeError(f"CompressedListStorage: {index.numel()} indices for {count} rows")
        length = length_after_write("CompressedListStorage", index, len(self), self.max_size)
        rows = [_bytes_of(cell) for cell in cells.values()]
        blobs = [self._compressed(row.numpy().tobytes()) for row in torch.cat(rows, 1)]
        if (
            self._layout is None
            and self._row(layout, blobs[0]) != torch.cat([row[0] for row in rows]).numpy().tobytes()
        ):
            self._raise_not_inverse()
        self._layout = layout
        self._rows.extend([b""] * (length - len(self._rows)))
        where: list[int] = index.reshape(-1).tolist()
        for position, blob in zip(where, blobs, strict=True):
            self._rows[position] = blob
        self._revision += 1

    def columns(self, keys: Iterable[NestedKey], index: Tensor | None = None) -> dict[NestedKey, Tensor]:
        """Return entries of the rows under `index` ``[*n]``, or of all rows; those that rows lack are omitted."""
        layout = self._layout
        wanted = [] if layout is None else [key for key in keys if key in layout.columns]
        if layout is None or not wanted:
            return {}
        rows = list(range(len(self))) if index is None else self._numbers(index)
        shape = (len(rows),) if index is None else index.shape
        cells = _taken_apart(layout, self._bytes(layout, rows), wanted)
        return {key: cell.reshape((*shape, *cell.shape[1:])) for key, cell in cells.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the compressed rows one after the other, uint8, and their lengths."""
        blobs = bytearray(b"".join(self._rows))
        return {
            "max_size": self.max_size,
            "rows": torch.frombuffer(blobs, dtype=torch.uint8) if blobs else torch.empty(0, dtype=torch.uint8),
            "sizes": torch.tensor([len(row) for row in self._rows], dtype=torch.int64),
            "layout": None if self._layout is None else self._layout.state(),
        }

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:  # noqa: ARG002
        fields = Fields("CompressedListStorage", state, ("max_size", "rows", "sizes", "layout"))
        fields.match(max_size=self.max_size)
        data, sizes = fields.tensor("rows", torch.uint8, 1), fields.tensor("sizes", torch.int64, 1)
        layout = self._layout = None if fields["layout"] is None else Layout.from_state(fields["layout"])
        lengths: list[int] = sizes.tolist()
        if len(lengths) > self.max_size or min(lengths, default=0) < 0 or sum(lengths) != len(data):
            fields.fail(f"it has {len(lengths)} rows in {len(data)} bytes")
        if layout is None and lengths:
            fields.fail(f"it has {len(lengths)} rows and no layout")
        if layout is not None:
            _check_columns(layout)
        self._rows = [part.numpy().tobytes() for part in data.cpu().split(lengths)] if lengths else []
        for row in self._rows if layout is not None else ():
            try:
                self._row(layout, row)
            except Exception as error:  # noqa: BLE001  functions of the user raise anything
                fields.fail(f"a row cannot be decompressed ({type(error).__name__}: {error}) by this storage")
        self._revision += 1

    def _numbers(self, index: Tensor) -> list[int]:
        rows: list[int] = index.reshape(-1).tolist()
        for row in rows:
            if not 0 <= row < len(self):
                raise IndexError(f"CompressedListStorage: index {row} is outside [0, {len(self)})")
        return rows

    def _cells(self, data: Any) -> tuple[Cells, Layout]:
        """Entries ``[n, ...]`` of a batch, checked, and their layout."""
        self._check_type(data)
        batches = [data]
        if isinstance(data, (list, tuple)):
            wrong = [row for row in data if not isinstance(row, (TensorDictBase, Tensor))]
            if wrong:
                raise ContractError(
                    f"CompressedListStorage holds TensorDicts and tensors, got {type(wrong[0]).__name__}; use"
                    " ListStorage for other objects"
                )
            batches = [row.unsqueeze(0) for row in data]
        if not batches or not len(batches[0]):
            raise ShapeError("CompressedListStorage: a batch without rows")
        layout, parts = self._layout, list[Cells]()
        for batch in batches:
            kinds: NodeTypes = {}
            cells = flatten(batch, 1, kinds)
            for key, cell in cells.items():
                if not isinstance(cell, Tensor) or cell.is_nested or cell.is_meta or cell.layout is not torch.strided:
                    raise SpecError(
                        f"CompressedListStorage: {key_str(key) if key else 'the tensor'} is no dense tensor with"
                        " values; nothing was written. Use ListStorage, which keeps rows as they are"
                    )
            if layout is None:
                layout = Layout.of(batch)
                _check_columns(layout)
            layout.check(cells, "CompressedListStorage", kinds)
            parts.append(cells)
        assert layout is not None  # there is a batch
        if len(parts) == 1:
            return {key: parts[0][key] for key in layout.columns}, layout
        return {key: torch.cat([part[key] for part in parts]) for key in layout.columns}, layout

    def _compressed(self, row: bytes) -> bytes:
        if self._compress is None:
            return zlib.compress(row, self.compression_level)
        blob: Any = self._compress(row)
        if not isinstance(blob, (bytes, bytearray, memoryview)):
            raise ContractError(
                f"CompressedListStorage: compression_fn must return bytes, got {type(blob).__name__}; nothing was"
                " written"
            )
        return bytes(blob)

    def _row(self, layout: Layout | None, blob: bytes) -> bytes:
        row: Any = self._decompress(blob)
        if not isinstance(row, (bytes, bytearray, memoryview)) or layout is None or len(row) != _row_size(layout):
            self._raise_not_inverse()
        return bytes(row)

    def _bytes(self, layout: Layout, rows: list[int]) -> Tensor:
        """Return the decompressed rows, uint8 ``[n, bytes]``."""
        joined = bytearray(b"".join([self._row(layout, self._rows[row]) for row in rows]))
        flat = torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.empty(0, dtype=torch.uint8)
        return flat.reshape(len(rows), _row_size(layout))

    @staticmethod
    def _raise_not_inverse() -> NoReturn:
        raise ContractError(
            "CompressedListStorage: decompression_fn does not return the bytes that compression_fn was given; pass"
            " functions that are inverse to each other"
        )


def _check_columns(layout: Layout) -> None:
    for key, column in layout.columns.items():
        if column.dtype is None:
            raise SpecError(f"CompressedListStorage: {key_str(key)} is no tensor; use ListStorage for other objects")
    if layout.kinds:
        places = ", ".join(f"a {kind.short} at {key_str(place)}" for place, kind in layout.kinds.items())
        raise ContractError(
            f"CompressedListStorage holds TensorDicts and tensors, got {places}; convert it to a TensorDict, or use"
            " ListStorage"
        )
    if not layout.columns:
        raise ContractError("CompressedListStorage: the first batch has no entries; a row needs at least one key")


def _row_size(layout: Layout) -> int:
    return sum(c.shape.numel() * c.dtype.itemsize for c in layout.columns.values() if c.dtype is not None)


def _bytes_of(cell: Tensor) -> Tensor:
    """Return the bytes of ``[n, ...]`` as uint8 ``[n, bytes]``, on the CPU."""
    rows = cell.cpu().resolve_conj().resolve_neg().contiguous().reshape(len(cell), -1)
    return rows.view(torch.uint8) if rows.numel() else torch.empty(len(cell), 0, dtype=torch.uint8)


def _taken_apart(layout: Layout, rows: Tensor, keys: Iterable[NestedKey]) -> dict[NestedKey, Any]:
    """Entries of decompressed rows ``[n, bytes]``, each ``[n, *shape]``."""
    wanted = set(keys)
    found: dict[NestedKey, Any] = {}
    start = 0
    for key, column in layout.columns.items():
        if column.dtype is None:
            continue
        size = column.shape.numel() * column.dtype.itemsize
        if key in wanted:
            part = torch.empty((len(rows), *column.shape), dtype=column.dtype)
            if part.numel():
                part.reshape(len(rows), -1).view(torch.uint8).copy_(rows[:, start : start + size])
            found[key] = part
        start += size
    return found
