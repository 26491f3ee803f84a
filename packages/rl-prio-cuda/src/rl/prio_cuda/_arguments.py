"""Argument checks of the CUDA tree: shapes, dtypes and devices only, without waiting for the device."""

from __future__ import annotations

import operator
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from rl.core.errors import ArgumentError, ShapeError

_MOST = 2**31 - 2  # entries of a batch: their positions are kept as int32


def as_integer(value: Any) -> int:
    """`value` as an int (a symbolic one while a graph is traced); -1 if it is not an integer.

    Example:
        >>> as_integer(3), as_integer(2.5), as_integer("3")
        (3, -1, -1)
    """
    if isinstance(value, int | torch.SymInt):
        return cast("int", value)
    try:
        return operator.index(value)
    except TypeError:
        return -1


def described(given: object) -> str:
    """Describe an argument, for messages.

    Example:
        >>> described([1]), described(torch.ones(3))
        ('a list', 'torch.float32')
    """
    return str(given.dtype) if isinstance(given, Tensor) else f"a {type(given).__name__}"


def prepare_index(owner: str, index: Tensor, device: torch.device) -> Tensor:
    """Contiguous indices for the kernels.

    Raises:
        ArgumentError: If they are not int64, more than a call supports, or on another device.
    """
    if not isinstance(index, Tensor) or index.dtype is not torch.int64:
        raise ArgumentError(f"{owner}: indices are a tensor of torch.int64, got {described(index)}")
    if index.device != device:
        raise ArgumentError(f"{owner}: this tree is on {device}, the indices are on {index.device}")
    if index.numel() > _MOST:
        raise ArgumentError(f"{owner}: {index.numel()} entries; a call takes at most {_MOST}")
    return index.contiguous()


def prepare_batch(
    owner: str, index: Tensor, value: Tensor, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Contiguous indices and values for the kernels.

    Raises:
        ArgumentError: If one of them is on another device, or the indices are not int64.
        ShapeError: If there is not one value for each index, or one for all.
    """
    index = prepare_index(owner, index, device)
    if not isinstance(value, Tensor) or value.dtype.is_complex:
        raise ArgumentError(f"{owner}: values are a tensor of real numbers, got {described(value)}")
    if value.requires_grad:
        value = value.detach()
    if value.device != device:
        raise ArgumentError(f"{owner}: this tree is on {device}, the values are on {value.device}")
    if value.dtype is not dtype:
        value = value.to(dtype)
    if index.shape != value.shape and value.ndim:
        raise ShapeError(
            f"{owner}: {tuple(value.shape)} values for {tuple(index.shape)} indices; pass one value for each index, or"
            " a single one without dimensions"
        )
    return index, value.contiguous()


def check_target(owner: str, given: Tensor | None, shape: tuple[int, ...], like: Tensor) -> None:
    """Require a tensor that an update can write.

    Args:
        owner: Component that messages name.
        given: Tensor, if any.
        shape: Required shape.
        like: Tensor with the required dtype and device.

    Raises:
        ShapeError: If it has another shape.
        ArgumentError: If it is of another dtype, on another device, or not contiguous.
    """
    if given is None:
        return
    if not isinstance(given, Tensor):
        raise ArgumentError(f"{owner} is {described(given)}; it is a tensor of {like.dtype} on {like.device}")
    if given.shape != shape:
        raise ShapeError(f"{owner} has the shape {tuple(given.shape)}; it is {shape}")
    if given.dtype is not like.dtype or given.device != like.device or not given.is_contiguous():
        raise ArgumentError(
            f"{owner} is {given.dtype} on {given.device}; it is contiguous, {like.dtype} and on {like.device}"
        )


def check_apart(
    owner: str, buffer: Tensor, index: Tensor, value: Tensor, raw: Tensor | None = None, largest: Tensor | None = None
) -> None:
    """Require that no written tensor shares memory with another argument.

    Threads of a large update read values while others write.

    Args:
        owner: Component that messages name.
        buffer: Buffer of the tree, written.
        index: Indices, contiguous as all tensors are.
        value: Priorities or errors.
        raw: Raw priorities, written; None for none.
        largest: Largest raw priority, written; None for none.

    Raises:
        ArgumentError: Naming the two.
    """
    # Without a loop, which takes twice as long.
    at, i, v = buffer.data_ptr(), index.data_ptr(), value.data_ptr()
    end, i_end, v_end = at + buffer.nbytes, i + index.nbytes, v + value.nbytes
    shared = (i < end and at < i_end) or (v < end and at < v_end)
    r, r_end = 0, 0
    if raw is not None:
        r = raw.data_ptr()
        r_end = r + raw.nbytes
        shared = shared or (i < r_end and r < i_end) or (v < r_end and r < v_end) or (at < r_end and r < end)
    if largest is not None:
        w = largest.data_ptr()
        shared = shared or i <= w < i_end or v <= w < v_end or at <= w < end or r <= w < r_end
    if shared:
        _report_shared(owner, buffer, index, value, raw, largest)


def _report_shared(
    owner: str, buffer: Tensor, index: Tensor, value: Tensor, raw: Tensor | None, largest: Tensor | None
) -> None:
    """Raise an error that names two arguments that share memory; return if one of them is empty."""
    start = buffer.data_ptr()
    written = [("the tree", start, start + buffer.nbytes)]
    for name, tensor in (("raw", raw), ("largest", largest), ("the indices", index), ("the values", value)):
        if tensor is None or not tensor.numel():
            continue
        first = tensor.data_ptr()
        last = first + tensor.nbytes
        for other, start, end in written:
            if first < end and start < last:
                _raise_shared(owner, name, other)
        if tensor is raw or tensor is largest:
            written.append((name, first, last))


def check_apart_traced(
    owner: str, buffer: Tensor, index: Tensor, value: Tensor, raw: Tensor | None = None, largest: Tensor | None = None
) -> None:
    """`check_apart` while a graph is traced: tensors without memory, compared by storage and offset.

    Raises:
        ArgumentError: Naming the two.
    """
    written = [("the tree", buffer)]
    for name, tensor in (("raw", raw), ("largest", largest), ("the indices", index), ("the values", value)):
        if tensor is None or not tensor.is_contiguous():  # copied before the call
            continue
        for other, given in written:
            if tensor.untyped_storage()._cdata == given.untyped_storage()._cdata and _overlap(tensor, given):  # noqa: SLF001  its only identity
                _raise_shared(owner, name, other)
        if tensor is raw or tensor is largest:
            written.append((name, tensor))


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Return whether two contiguous tensors of one storage share memory."""
    first, start = (each.storage_offset() * each.element_size() for each in (one, other))
    return bool(first < start + other.nbytes and start < first + one.nbytes)


def _raise_shared(owner: str, one: str, other: str) -> NoReturn:
    raise ArgumentError(
        f"{owner}: {one} and {other} share memory, and a call must not write what it reads; pass a clone of one of them"
    )


def check_finite(owner: str, **given: float) -> None:
    """Require finite numbers of at least 0.

    Raises:
        ArgumentError: Naming it.
    """
    for name, value in given.items():
        if not 0 <= value < float("inf"):
            raise ArgumentError(f"{owner}: {name} is {value}; it is finite and at least 0")


def prepare_uniforms(
    owner: str, n: int, u: Tensor | None, generator: torch.Generator | None, device: torch.device
) -> Tensor:
    """Uniform numbers for `n` samples, float64 ``[n]`` on the device.

    Raises:
        ArgumentError: If `n` is not an integer, negative or too large, or `u` is not a tensor.
        ShapeError: If `u` has another shape or device.
    """
    asked, n = n, as_integer(n)
    if not 0 <= n <= _MOST:
        raise ArgumentError(f"{owner}: n is {asked}; it must be an integer from 0 to {_MOST}")
    if u is None:
        if generator is None:  # without the argument: with it torch rejects a symbolic n
            return torch.rand(n, dtype=torch.float64, device=device)
        u = torch.rand(n, dtype=torch.float64, device=generator.device, generator=generator)
        return u if u.device == device else u.to(device, non_blocking=True)
    if not isinstance(u, Tensor):
        raise ArgumentError(f"{owner}: u is {described(u)}; it is a tensor ({n},) on {device}")
    if u.shape != (n,) or u.device != device:
        raise ShapeError(f"{owner}: u is {tuple(u.shape)} on {u.device}; it is ({n},) on {device}")
    return u.to(torch.float64).contiguous()
