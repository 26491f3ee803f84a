"""`SharedLeaves`: tensors by key in one block of memory that worker processes map."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import ArgumentError, ShapeError
from rl.core.keys import NestedKey, key_str
from rl.core.workers._base import Descriptor

Layout = Mapping[NestedKey, tuple[tuple[int, ...], torch.dtype]]
"""Shape and dtype by key."""

#: bytes between the beginnings of two tensors are multiples of it: a cache line
ALIGNMENT = 64


class SharedLeaves:
    """Tensors by key in one block of memory that several processes map.

    Create it before the workers start and pass it to them; when the layout is known, both sides call `map` with it.
    The block is a nameless file: nothing is left of it when the last process ends.

    Example:
        >>> shared = SharedLeaves()
        >>> shared.map({"reward": ((4, 1), torch.float32)})["reward"].shape
        torch.Size([4, 1])
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            number = os.memfd_create("rl", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                number = os.dup(file.fileno())
        self._file = Descriptor(number)
        weakref.finalize(self, self._file.close).atexit = False

    def map(self, layout: Layout) -> dict[NestedKey, Tensor]:
        """Return the tensors of a layout, zeros at first; every process that maps the same layout sees the same ones.

        Args:
            layout: Shape and dtype by key, in the same order in all processes.
        """
        places: list[tuple[NestedKey, int, int, tuple[int, ...], torch.dtype]] = []
        end = 0
        for key, (shape, dtype) in layout.items():
            size = prod(shape) * dtype.itemsize
            places.append((key, end, size, tuple(shape), dtype))
            end += -(-size // ALIGNMENT) * ALIGNMENT
        length = max(end, 1)
        if os.fstat(self._file.number).st_size < length:
            os.ftruncate(self._file.number, length)
        block = torch.frombuffer(mmap.mmap(self._file.number, length), dtype=torch.uint8)
        return {
            key: block[start : start + size].view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)
            for key, start, size, shape, dtype in places
        }

    def close(self) -> None:
        """Close the file; mapped tensors stay valid. Happens by itself when the object is garbage."""
        self._file.close()


def layout_of(entries: Mapping[NestedKey, Any], owner: str) -> dict[NestedKey, tuple[tuple[int, ...], torch.dtype]]:
    """Return the layout of tensors, or of specs, by key.

    Args:
        entries: Tensors or leaf specs.
        owner: Name of the component in messages.

    Raises:
        ArgumentError: If an entry is no tensor, such as a string.
    """
    for key, entry in entries.items():
        if not isinstance(getattr(entry, "dtype", None), torch.dtype):
            raise ArgumentError(
                f"{owner}: {key_str(key)} is no tensor ({type(entry).__name__}) and cannot be in shared memory; pass"
                " shared_memory=False"
            )
    return {key: (tuple(entry.shape), entry.dtype) for key, entry in entries.items()}


def write_leaves(places: Mapping[Any, Tensor], entries: Any, owner: str, rows: Tensor | None = None) -> None:
    """Copy entries into prepared tensors, after a comparison: a bare copy would broadcast and cast what does not fit.

    Args:
        places: Tensors by key. Those without an entry stay as they are.
        entries: A TensorDict, or tensors by key; entries without a place are left out.
        owner: Name of the component in messages.
        rows: Indices of the rows that the entries are written to; all if None.

    Raises:
        ShapeError: If an entry has another shape or dtype than its place. Nothing is written then.

    Example:
        >>> place = torch.zeros(3)
        >>> write_leaves({"observation": place}, {"observation": torch.ones(1)}, "example")
        Traceback (most recent call last):
        rl.core.errors.ShapeError: example: observation is float32 [1], expected float32 [3]: ...
        >>> place.tolist()
        [0.0, 0.0, 0.0]
    """
    found: list[tuple[Tensor, Tensor]] = []
    for key, place in places.items():
        value = entries.get(key, None)
        if value is None and (not isinstance(entries, Mapping) or key not in entries):
            continue
        shape = place.shape if rows is None else torch.Size((len(rows), *place.shape[1:]))
        if not isinstance(value, Tensor) or value.shape != shape or value.dtype != place.dtype:
            raise ShapeError(
                f"{owner}: {key_str(key)} is {_form(value)}, expected {_form(place, shape)}: nothing is broadcast or"
                " cast into prepared memory. Change what writes it, or its spec"
            )
        found.append((place, value))
    for place, value in found:
        if rows is None:
            place.copy_(value)
        else:
            place[rows] = value.to(place.device)


def _form(value: Any, shape: Any = None) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape if shape is None else shape)}"
