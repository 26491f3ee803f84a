"""What is said about the rows of slices: where they begin and end."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.interfaces import Storage
from rl.core.keys import DONE, TERMINATED, NestedKey, as_tuple, unwrap
from rl.replay._boundaries import read_columns

__all__ = ["MASK", "Shape", "SliceMarks"]

MASK: NestedKey = ("collector", "mask")
Flags = dict[NestedKey, Tensor]


class Shape(NamedTuple):
    """Of a draw: how many slices, of how many steps at most, and of each (int64 ``[slices]``), if some are shorter."""

    slices: int
    length: int
    steps: Tensor | None


class SliceMarks:
    """Flags of slices: as stored, and true where a slice begins or ends.

    Args:
        truncated_key: where ends are marked, with ``done`` and ``terminated`` beside it; None for not.
        init_key: where beginnings are marked; None for not.
        pad: shorter slices are filled up with copies of their last row.
    """

    def __init__(self, truncated_key: NestedKey | None, init_key: NestedKey | None, *, pad: bool) -> None:
        self._truncated: Final = None if truncated_key is None else unwrap(truncated_key)
        beside = () if truncated_key is None else as_tuple(truncated_key)[:-1]
        self._done, self._terminated = unwrap((*beside, DONE)), unwrap((*beside, TERMINATED))
        self._init: Final = None if init_key is None else unwrap(init_key)
        self._pad: Final = pad
        ends = () if self._truncated is None else (self._truncated, self._done, self._terminated)
        self._keys: Final[tuple[NestedKey, ...]] = ends if self._init is None else (*ends, self._init)

    def shaped(self, rows: Tensor, steps: Tensor | None) -> tuple[Tensor, Shape]:
        """Rows ``[slices, length]``, of shorter slices with copies of the last one, in the shape of a sample."""
        shape = Shape(rows.shape[0], rows.shape[1], steps)
        if self._pad:
            return rows, shape
        return rows.reshape(-1) if steps is None else rows[_inside(shape)], shape

    def of_data(self, data: TensorDictBase, shape: Shape) -> Flags:
        """Marks of gathered rows; written into `data`, too."""
        given = {key: flag for key in self._keys if (flag := data.get(key, None)) is not None}
        flags = self._flags(given, data.device, shape)
        for key, flag in flags.items():
            if given.get(key) is not flag:
                data.set(key, flag)
        if data.names[at := 1 if self._pad else 0] is None:
            # Who reads sequences need not guess that these are steps in order.
            data.names = [name if dim != at else "time" for dim, name in enumerate(data.names)]
        return flags

    def of_storage(self, storage: Storage, index: Tensor, shape: Shape) -> Flags:
        """Marks of stored rows, which stay as they are."""
        columns = read_columns(storage, self._keys, index)
        return self._flags(columns, next((flag.device for flag in columns.values()), None), shape)

    def _flags(self, given: Flags, device: torch.device | None, shape: Shape) -> Flags:
        """All flags; those of type bool that are `given` are changed in place."""
        first, last, behind = _edges(shape, device, pad=self._pad)
        flags: Flags = {}
        if self._truncated is not None:
            flags = self._ends(given, last)
        if self._init is not None:
            if behind is not None:  # a copy of the last step goes on with nothing
                first = first | behind
            init = given.get(self._init)
            if init is None:
                like = next(iter(flags.values()), first)
                init = _like(first, like).expand_as(like).clone()
            else:
                init = init.bool()
                init |= _like(first, init)
            flags[self._init] = init
        if self._pad:
            flags[MASK] = (torch.ones_like(first) if behind is None else ~behind).squeeze(-1)
        return flags

    def _ends(self, given: Flags, last: Tensor) -> Flags:
        assert self._truncated is not None
        truncated, done, terminated = (given.get(key) for key in self._keys[:3])
        if done is None:
            known = [flag.bool() for flag in (truncated, terminated) if flag is not None]
            done = torch.stack(known).any(0) if known else torch.zeros_like(last)
        done = done.bool()
        truncated = torch.zeros_like(done) if truncated is None else truncated.bool()
        if terminated is None:
            terminated = done & ~(truncated.reshape(done.shape) if truncated.numel() == done.numel() else truncated)
        truncated |= _like(last, truncated)
        done |= _like(last, done)
        return {self._truncated: truncated, self._done: done, self._terminated: terminated}


def _edges(shape: Shape, device: torch.device | None, *, pad: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Where slices begin, end, and, in padded samples, where rows are copies; ``[*n, 1]`` each."""
    slices, length, steps = shape
    if steps is None:
        return (*_whole_edges(slices, length, device, pad=pad), None)
    place, steps = torch.arange(length), steps.unsqueeze(1)
    edges = (place == 0).expand(slices, -1), place >= steps - 1, place >= steps
    if pad:
        first, last, behind = (edge.unsqueeze(-1).to(device) for edge in edges)
        return first, last, behind
    first, last = (edge[~edges[2]].unsqueeze(-1).to(device) for edge in edges[:2])
    return first, last, None


@lru_cache(maxsize=16)
def _whole_edges(slices: int, length: int, device: torch.device | None, *, pad: bool) -> tuple[Tensor, Tensor]:
    """Where slices begin and end if each has all of its steps; kept, nobody writes into them."""
    edges = torch.zeros(2, slices, length, 1, dtype=torch.bool)
    edges[0, :, 0], edges[1, :, -1] = True, True
    first, last = (edges if pad else edges.flatten(1, 2)).to(device)
    return first, last


def _inside(shape: Shape) -> Tensor:
    assert shape.steps is not None
    return torch.arange(shape.length) < shape.steps.unsqueeze(1)


def _like(mark: Tensor, flag: Tensor) -> Tensor:
    """`mark` ``[*n, 1]`` in a shape that fits that of `flag` ``[*n, ...]``."""
    return mark if mark.dim() == flag.dim() else mark.reshape(*mark.shape[:-1], *[1] * (flag.dim() - mark.dim() + 1))
