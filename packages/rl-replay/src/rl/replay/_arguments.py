"""Checks of arguments: integers, indices, and that a part is one."""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch import Tensor

from rl.core.errors import ArgumentError, ContractError
from rl.core.interfaces import Storage

T = TypeVar("T")

Index = Tensor | int | slice | Sequence[int]
"""What names rows of a storage."""

_PARTS = {
    "storage": ("get", "LazyTensorStorage(1000)"),
    "sampler": ("sample", "RandomSampler()"),
    "writer": ("claim", "RoundRobinWriter()"),
}


def as_device(owner: str, device: Any) -> torch.device | None:
    """Return `device` as one of torch; None stays None.

    Raises:
        ArgumentError: If it is no device, or several.

    Example:
        >>> as_device("storage", "cpu")
        device(type='cpu')
    """
    try:
        return None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0][:100]
        raise ArgumentError(
            f"{owner}: device is one device of torch, such as 'cpu' or 'cuda:0', got {device!r} ({reason})"
        ) from error


def to_device(values: Tensor, device: torch.device | None) -> Tensor:
    """`values` on a device; those of the CPU get there without waiting for the device.

    A copy with ``non_blocking=True`` has read pageable memory when the call returns. It reads pinned memory later, when
    the caller may have changed it, and a copy to the CPU may be incomplete: those wait.

    Args:
        values: Tensor to move.
        device: Device of the result; where `values` is if None.

    Example:
        >>> to_device(torch.arange(3), torch.device("cpu"))
        tensor([0, 1, 2])
    """
    if device is None or values.device == device:
        return values
    return values.to(device, non_blocking=values.is_cpu and not values.is_pinned())


def row_index(owner: str, index: Any, rows: int) -> int | slice | Tensor:
    """Return the index of some of `rows` rows, with lists and masks as int64 ``[n]``.

    Raises:
        IndexError: If it is not an integer, slice, list, tensor or mask of `rows`.

    Example:
        >>> row_index("buffer", [True, False, True], 3)
        tensor([0, 2])
    """
    if isinstance(index, (int, slice)):
        return index
    if isinstance(index, (list, range)):
        index = list(index)
        index = torch.tensor(index, device="cpu") if index else torch.empty(0, dtype=torch.int64, device="cpu")
    elif not isinstance(index, Tensor) and hasattr(index, "__array__"):
        index = torch.as_tensor(index, device="cpu")
    if not isinstance(index, Tensor) or index.is_floating_point():
        kind = f"tensor of {index.dtype}" if isinstance(index, Tensor) else type(index).__name__
        raise IndexError(
            f"{owner} is indexed by integers, slices, lists, tensors and masks, got a {kind}; for an entry, index"
            " the rows: buffer[:][key]"
        )
    if index.dtype is torch.bool:
        if index.shape != (rows,):
            raise IndexError(f"{owner}: a mask of shape {list(index.shape)} for {rows} rows")
        index = index.nonzero().squeeze(-1)
    return index if index.ndim else int(index)


def row_numbers(owner: str, index: Any, rows: int) -> Tensor:
    """Return indices int64 ``[n]`` from a slice over `rows` rows, a range, list or array.

    Raises:
        IndexError: See `row_index`.

    Example:
        >>> row_numbers("storage", slice(1, None, 2), 5)
        tensor([1, 3])
    """
    if isinstance(index, slice):
        return torch.arange(*index.indices(rows), device="cpu")
    found = row_index(owner, index, rows)
    return found if isinstance(found, Tensor) else torch.tensor([found], device="cpu")


def check_parts(owner: str, transform: Any, **parts: Any) -> None:
    """Reject what cannot be that part: found out later, the others would have been changed by then.

    Raises:
        ArgumentError: If a part lacks its method.
    """
    for name, part in parts.items():
        method, example = _PARTS[name]
        if part is not None and (isinstance(part, type) or not callable(getattr(part, method, None))):
            raise ArgumentError(f"{owner}: {name} has a method {method!r}, got {part!r}: {name}={example}, for example")
    if transform is not None and not callable(transform):
        raise ArgumentError(f"{owner}: transform is a function from TensorDict to TensorDict, got {transform!r}")


class Completed:
    """A part that follows a protocol without the base class: its own members, and the defaults of the base.

    Args:
        part: Sampler or writer.
        base: Base class, `SamplerBase` or `WriterBase`.
    """

    def __init__(self, part: Any, base: type) -> None:
        self._part, self._base = part, base

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or hasattr(self._part, name):
            return getattr(self._part, name)
        default = getattr(self._base, name)
        return MethodType(default, self) if callable(default) else default


def completed(part: Any, base: type[T]) -> T:
    """Return `part` with all members of `base`: itself if it inherits from it."""
    return part if isinstance(part, base) else cast("T", Completed(part, base))


def overrides(part: Any, base: type, name: str) -> bool:
    """Return whether a part has its own method in place of the default of `base`."""
    return getattr(getattr(part, name), "__func__", None) is not getattr(base, name)


def check_rows(owner: str, storage: Storage, batch_size: int) -> int:
    """Return the number of rows of `storage`.

    Raises:
        ContractError: If there are none.
        ArgumentError: If `batch_size` is below 1.
    """
    if batch_size < 1:
        raise ArgumentError(f"{owner}: batch_size must be at least 1, got {batch_size}")
    rows = len(storage)
    if rows == 0:
        raise ContractError(f"{owner}: the buffer is empty; write rows with `add` or `extend` before sampling")
    return rows


def raise_no_priority(owner: str) -> NoReturn:
    """Say that a sampler has no priorities.

    Raises:
        ContractError: Always.
    """
    raise ContractError(f"{owner} has no priorities to update: use a prioritized sampler")


def check_replacement(owner: str, other: str, *, replacement: bool) -> None:
    """Name the sampler without replacement where `replacement` is False.

    Raises:
        ArgumentError: If it is.
    """
    if not replacement:
        raise ArgumentError(f"{owner}: replacement=False is another class here: use {other}(...)")
