"""Arithmetic of shapes and indices that the specs share."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import torch
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.errors import SpecError, SpecIndexError

__all__ = ["as_size", "complete_index", "flat_positions", "lead_size", "pick", "resolve_sizes", "suffix_length", "take"]


def as_size(*shape: Any) -> torch.Size:
    """A shape from an integer, several integers, or one sequence.

    Example:
        >>> as_size(3), as_size(2, 3), as_size((2, 3)), as_size(())
        (torch.Size([3]), torch.Size([2, 3]), torch.Size([2, 3]), torch.Size([]))
    """
    given = shape[0] if len(shape) == 1 else shape
    if isinstance(given, torch.Size):
        return given
    try:
        if not isinstance(given, tuple | list):
            given = (given,) if hasattr(given, "__index__") and not getattr(given, "shape", ()) else tuple(given)
        return torch.Size([as_integer(size, "shape", "a size") for size in given])
    except (TypeError, SpecError) as error:
        raise SpecError(f"a shape is an integer or a sequence of integers, got {given!r}") from error


def lead_size(shape: Any) -> torch.Size:
    """A shape as in `as_size`; None has no dimensions.

    Example:
        >>> lead_size(None), lead_size(3)
        (torch.Size([]), torch.Size([3]))
    """
    return torch.Size(()) if shape is None else as_size(shape)


def flat_positions(shape: Iterable[int]) -> Tensor:
    """The number of each element in row-major order, int64 of that shape."""
    sizes = tuple(shape)
    return torch.arange(prod(sizes)).reshape(sizes)


def take(parameter: Tensor, positions: Tensor, ndim: int) -> Tensor:
    """A copy of elements `positions` of the first `ndim` dimensions, seen as one: ``[*positions, *rest]``."""
    rest = parameter.shape[ndim:]
    shape = positions.shape + rest
    if parameter.numel() == 0 or positions.numel() == 0:
        return parameter.new_zeros(shape)
    if not any(parameter.stride()):  # one number for all elements stays one number
        return parameter.reshape(-1)[0].clone().expand(shape)
    flat = parameter.reshape(prod(parameter.shape[:ndim]), *rest)
    taken = flat.index_select(0, positions.reshape(-1).to(parameter.device))  # indexing with a scalar gives a view
    return taken.reshape(shape)


def suffix_length(a: torch.Size, b: torch.Size) -> int:
    """How many trailing dimensions two shapes share."""
    count = 0
    for left, right in zip(reversed(a), reversed(b), strict=False):
        if left != right:
            break
        count += 1
    return count


def resolve_sizes(sizes: torch.Size, total: int) -> torch.Size:
    """`sizes` with a -1 in it replaced by what makes `total` elements.

    Raises:
        SpecError: if there is no such number.
    """
    if -1 not in sizes:
        return sizes
    known = prod(size for size in sizes if size != -1)
    if sizes.count(-1) > 1 or known == 0 or total % known:
        raise SpecError(f"cannot arrange {total} elements in {tuple(sizes)}")
    return torch.Size(total // known if size == -1 else size for size in sizes)


def _consumed(entry: Any) -> int:
    """How many dimensions one entry of an index takes up."""
    if entry is None:
        return 0
    if isinstance(entry, Tensor) and entry.dtype is torch.bool:
        return entry.ndim
    return 1


def _entry(entry: Any) -> Any:
    """Lists and arrays as tensors."""
    if entry is None or entry is Ellipsis or isinstance(entry, int | slice | Tensor):
        return entry
    return torch.as_tensor(entry)


def complete_index(index: Any, ndim: int) -> tuple[tuple[Any, ...], int]:
    """An index without ``...`` and without trailing ``:``, and how many dimensions it takes up.

    Args:
        index: what stood between the brackets.
        ndim: number of dimensions of what is indexed.

    Raises:
        SpecIndexError: if there are more entries than dimensions.
    """
    entries = [_entry(entry) for entry in (index if isinstance(index, tuple) else (index,))]
    dots = [place for place, entry in enumerate(entries) if entry is Ellipsis]
    used = sum(_consumed(entry) for entry in entries if entry is not Ellipsis)
    if len(dots) > 1 or used > ndim:
        raise SpecIndexError(f"index {index!r} does not fit {ndim} dimensions")
    for place in dots:
        entries[place : place + 1] = [slice(None)] * (ndim - used)
    while entries and isinstance(entries[-1], slice) and entries[-1] == slice(None):
        entries.pop()
    return tuple(entries), sum(_consumed(entry) for entry in entries)


def pick(positions: Tensor, entries: tuple[Any, ...]) -> Tensor:
    """``positions[entries]``, also with slices of negative step.

    Args:
        positions: what is indexed.
        entries: as `complete_index` returns them.
    """
    plain: list[Any] = []
    dim = 0
    for entry in entries:
        if isinstance(entry, slice) and entry.step is not None and entry.step < 0:
            kept = range(*entry.indices(positions.shape[dim]))
            positions = positions.index_select(dim, torch.tensor(kept, dtype=torch.int64))
            plain.append(slice(None))
        else:
            plain.append(entry)
        dim += _consumed(entry)
    return positions[tuple(plain)]
