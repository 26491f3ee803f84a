"""What is said about the rows of slices: where they begin and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError
from rl.core.interfaces import Storage
from rl.core.keys import DONE, INDEX, TERMINATED, NestedKey, as_tuple, key_str, unwrap
from rl.replay._slices.borders import Borders
from rl.replay._slices.draw import Steps
from rl.replay._slices.end_flags import read_columns
from rl.replay._slices.extra import Annotated
from rl.replay.storages._layout import Cells, Layout
from rl.replay.storages._rows import TensorRows

__all__ = ["MASK", "Drawn", "SliceMarks"]

MASK: NestedKey = ("collector", "mask")
Flags = dict[NestedKey, Tensor]


@dataclass(slots=True)
class Drawn:
    """What a draw knows about its slices until their rows are marked.

    Args:
        slices: how many.
        length: steps of a slice, at most.
        steps: of each slice, if some are shorter.
        begin: the first row of each slice, int64 ``[slices]``, if the rows of each lie side by side in the storage.
        flags: of the rows, once they were gathered and marked.
    """

    slices: int
    length: int
    steps: Steps | None = None
    begin: Tensor | None = None
    flags: Flags | None = None

    def shape(self, *, pad: bool) -> tuple[int, ...]:
        """Of a flag, ``[*n, 1]``."""
        if pad:
            return self.slices, self.length, 1
        return self.slices * self.length if self.steps is None else int(self.steps.ends[-1]), 1


Edges = tuple[Tensor, Tensor, Tensor | None]
"""Where slices begin, where they end, and, in padded samples, which rows are none of the copies.

Places are flags of all rows of a draw ``[*n]``, bool ``[*n, 1]``, or numbers of some of them, int64 on the CPU.
"""


class SliceMarks:
    """Flags of slices: as stored, and true where a slice begins or ends.

    Args:
        truncated_key: where ends are marked, with ``done`` and ``terminated`` beside it; None for not.
        init_key: where beginnings are marked; None for not.
        borders: is shown the rows of slices before they are marked.
        pad: shorter slices are filled up with copies of their last row.
    """

    def __init__(
        self, truncated_key: NestedKey | None, init_key: NestedKey | None, borders: Borders, *, pad: bool
    ) -> None:
        self._truncated: Final = None if truncated_key is None else unwrap(truncated_key)
        beside = () if truncated_key is None else as_tuple(truncated_key)[:-1]
        self._done, self._terminated = unwrap((*beside, DONE)), unwrap((*beside, TERMINATED))
        self._init: Final = None if init_key is None else unwrap(init_key)
        self.borders: Final = borders
        self._pad: Final = pad
        ends = () if self._truncated is None else (self._truncated, self._done, self._terminated)
        self._keys: Final[tuple[NestedKey, ...]] = ends if self._init is None else (*ends, self._init)
        self._names: Final = [None, "time"] if pad else ["time"]
        self._whole: tuple[Any, Edges] | None = None  # nobody writes into them
        self._layouts: tuple[Layout, Layout, Layout | None, bool] | None = None

    def gather(
        self, storage: Storage, index: Tensor, drawn: Drawn, *, indexed: bool
    ) -> TensorDictBase | Annotated | None:
        """The rows of a draw with their flags, made in one go; None if the storage keeps more than tensors.

        If `indexed`, they are `Annotated` with ``index`` where that is one number for each row, on the CPU as they are.
        """
        layout = storage.layout if isinstance(storage, TensorRows) else None
        if layout is None or layout.root is None:
            return None
        assert isinstance(storage, TensorRows)
        cells = storage.cells(index, None if drawn.begin is None else (drawn.begin, drawn.length))
        if cells is None:
            return None
        if self.borders.left > 0:
            self._look(cells, index, drawn)
        known = self._layouts
        if drawn.steps is None and known is not None and known[0] is layout and known[3]:
            flags = self._whole_flags(cells, storage.device, drawn)
        else:
            flags = self._flags(cells, storage.device, drawn)
            known = self._wider(layout, flags, index.dim())
        drawn.flags = flags
        cells.update(flags)
        _, wider, with_index, _ = known
        if not indexed or with_index is None or not storage.on_cpu:
            return wider.build(cells, index.shape, storage.device, self._names)
        cells[INDEX] = index
        return Annotated(with_index.build(cells, index.shape, storage.device, self._names))

    def of_data(self, data: TensorDictBase, index: Tensor, drawn: Drawn) -> Flags:
        """Marks of gathered rows ``[*n]``, which lie under `index` ``[*n]``; written into `data`, too."""
        if drawn.flags is not None:
            return drawn.flags
        given = {key: flag for key in self._keys if (flag := data.get(key, None)) is not None}
        _refuse_collisions(data, self._keys)
        if self.borders.left > 0 and not isinstance(data, LazyStackedTensorDict):  # rows of several shapes
            self._look(dict(data.items(include_nested=True, leaves_only=True)), index, drawn)
        flags = self._flags(given, data.device, drawn)
        for key, flag in flags.items():
            data.set(key, flag)  # what was given may be a copy already, as those of TensorDicts that are stacked lazily
        if data.names[at := len(self._names) - 1] is None:
            # Who reads sequences need not guess that these are steps in order.
            data.names = [name if dim != at else "time" for dim, name in enumerate(data.names)]
        return flags

    def of_storage(self, storage: Storage, index: Tensor, drawn: Drawn) -> Flags:
        """Marks of stored rows, which stay as they are."""
        columns = read_columns(storage, self._keys, index)
        if self.borders.left > 0 and isinstance(storage, TensorRows) and storage.layout is not None:
            self._look(storage.columns(storage.layout.columns, index), index, drawn)
        return self._flags(columns, next((flag.device for flag in columns.values()), None), drawn)

    def _look(self, cells: Mapping[NestedKey, Any], index: Tensor, drawn: Drawn) -> None:
        """Refuse slices over a border that no flag tells; those of a buffer's first draws."""
        if torch.compiler.is_compiling():
            return
        if drawn.steps is None or self._pad:
            ends = range(drawn.length, drawn.slices * drawn.length + 1, drawn.length)
        else:
            ends = drawn.steps.ends.tolist()
        self.borders.look(cells, index, ends, index.dim())

    def _wider(self, layout: Layout, flags: Flags, dims: int) -> tuple[Layout, Layout, Layout | None, bool]:
        """`layout`; with all flags, which are those of the draw before: same keys, and same shapes behind `dims`.

        And with ``index`` beside them, if that can be; and whether `_whole_flags` serves.
        """
        known = self._layouts
        if known is None or known[0] is not layout:
            wider = layout.wider({key: flag.shape[dims:] for key, flag in flags.items()})
            stored = {key: layout.columns.get(key) for key in self._keys}
            usual = all(
                column is None or (column.dtype is torch.bool and column.shape == (1,)) for column in stored.values()
            )
            absent = {key for key, column in stored.items() if column is None}
            quick = usual and absent <= {self._init} and None not in {self._truncated, self._init} and not self._pad
            self._layouts = known = layout, wider, wider.with_numbers([INDEX]), quick
        return known

    def _whole_flags(self, given: Cells, device: torch.device | None, drawn: Drawn) -> Flags:
        """`_flags` of whole slices, where rows have ends, bool ``[n, 1]``, and no beginnings or alike; quicker."""
        assert self._truncated is not None
        assert self._init is not None
        first, last, _ = self._edges(drawn, device)
        truncated, done, init = given[self._truncated], given[self._done], given.get(self._init)
        truncated |= last
        done |= last
        if init is None:
            init = first | first  # a copy, by what was just run for the others
        else:
            init |= first
        return {
            self._truncated: truncated,
            self._done: done,
            self._terminated: given[self._terminated],
            self._init: init,
        }

    def _flags(self, given: Mapping[NestedKey, Any], device: torch.device | None, drawn: Drawn) -> Flags:
        """All flags; those of type bool that are `given` are changed in place."""
        first, last, mask = self._edges(drawn, device)
        flags: Flags = {}
        if self._truncated is not None:
            flags = self._ends(given, drawn, device)
            _put(flags[self._truncated], last)
            _put(flags[self._done], last)
        if self._init is not None:
            init = given.get(self._init)
            if init is None:
                init = self._beginnings(first, flags, drawn, device)
            else:
                init = init.bool()
                _put(init, first)
            flags[self._init] = init
        if self._pad:
            assert mask is not None
            flags[MASK] = mask.clone() if drawn.steps is None else mask
        return flags

    def _edges(self, drawn: Drawn, device: torch.device | None) -> Edges:
        if drawn.steps is None:
            of = drawn.slices, drawn.length, device
            known = self._whole
            if known is None or known[0] != of:
                self._whole = known = of, _whole_edges(*of, pad=self._pad)
            return known[1]
        if self._pad:
            return _padded_edges(drawn.steps, drawn.length, device)
        each, ends = drawn.steps
        return torch.from_numpy(ends - each), torch.from_numpy(ends - 1), None

    def _beginnings(self, first: Tensor, flags: Flags, drawn: Drawn, device: torch.device | None) -> Tensor:
        """True where slices begin, in the shape of the other flags."""
        like = None if self._truncated is None else flags[self._truncated]
        if first.dtype is torch.bool and (like is None or like.shape == first.shape):
            return first | first  # a copy, by what was just run for the others
        init = _no_flags(drawn.shape(pad=self._pad), device) if like is None else torch.zeros_like(like)
        _put(init, first)
        return init

    def _ends(self, given: Mapping[NestedKey, Any], drawn: Drawn, device: torch.device | None) -> Flags:
        """Flags of ends as they are `given`, or as they follow from others."""
        assert self._truncated is not None
        truncated, done, terminated = given.get(self._truncated), given.get(self._done), given.get(self._terminated)
        if done is None:
            known = [flag.bool() for flag in (truncated, terminated) if flag is not None]
            done = torch.stack(known).any(0) if known else _no_flags(drawn.shape(pad=self._pad), device)
        done = done.bool()
        truncated = torch.zeros_like(done) if truncated is None else truncated.bool()
        if terminated is None:
            terminated = done & ~(truncated.reshape(done.shape) if truncated.numel() == done.numel() else truncated)
        return {self._truncated: truncated, self._done: done, self._terminated: terminated}


def _refuse_collisions(data: TensorDictBase, keys: Sequence[NestedKey]) -> None:
    """Refuse to write flags where `data` has a TensorDict, or below a tensor.

    Raises:
        ContractError: if a key of `keys` is such a place.
    """
    for key in keys:
        parts = as_tuple(key)
        for depth in range(1, len(parts) + 1):
            found: Any = data.get(parts[:depth], None)
            if found is None:
                break
            if isinstance(found, Tensor) != (depth == len(parts)):
                kind = "TensorDict" if depth == len(parts) else "tensor"
                raise ContractError(f"rows cannot get an entry {key_str(key)}: {parts[depth - 1]!r} is a {kind} there")


def _whole_edges(slices: int, length: int, device: torch.device | None, *, pad: bool) -> Edges:
    """Of slices that have all of their steps."""
    edges = torch.zeros(2, slices, length, 1, dtype=torch.bool, device="cpu")
    edges[0, :, 0], edges[1, :, -1] = True, True
    first, last = (edges if pad else edges.flatten(1, 2)).to(device)
    return first, last, torch.ones(first.shape[:-1], dtype=torch.bool, device=first.device) if pad else None


def _padded_edges(steps: Steps, length: int, device: torch.device | None) -> Edges:
    """Of slices of which some were shorter, and are filled up with copies of their last row."""
    behind = np.arange(length) - steps.each[:, None]
    first, last = behind >= 0, behind >= -1
    mask = ~first
    first[:, 0] = True  # a copy of the last step goes on with nothing
    first, last, mask = (torch.from_numpy(where).to(device) for where in (first, last, mask))
    return first.unsqueeze(-1), last.unsqueeze(-1), mask


def _no_flags(shape: tuple[int, ...], device: torch.device | None) -> Tensor:
    return torch.zeros(shape, dtype=torch.bool, device=device or "cpu")


def _put(flag: Tensor, places: Tensor) -> None:
    """Let `flag` ``[*n, ...]`` be true at `places`, see `Edges`."""
    if places.dtype is torch.bool:
        fits = places.dim() == flag.dim()
        flag |= places if fits else places.reshape(*places.shape[:-1], *[1] * (flag.dim() - places.dim() + 1))
    else:
        flag.index_fill_(0, places if flag.is_cpu else places.to(flag.device), value=True)
