"""Argument checks of the CUDA tree: shapes, dtypes and devices only, without waiting for the device."""

from __future__ import annotations

import operator
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from rl.core.errors import ShapeError, SpecError

__all__ = [
    "as_batch",
    "as_index",
    "came",
    "check_apart",
    "check_apart_traced",
    "check_beside",
    "check_exponents",
    "uniforms",
    "whole",
]

_MOST = 2**31 - 2  # entries of a batch: their places are kept as int32


def whole(value: Any) -> int:
    """`value` as an int, or as it is if a graph is traced for all; -1 if it is no whole number, which nothing here is.

    Example:
        >>> whole(3), whole(2.5), whole("3")
        (3, -1, -1)
    """
    if isinstance(value, int | torch.SymInt):
        return cast("int", value)
    try:
        return operator.index(value)
    except TypeError:
        return -1


def came(given: object) -> str:
    """What was given, for messages.

    Example:
        >>> came([1]), came(torch.ones(3))
        ('a list', 'torch.float32')
    """
    return str(given.dtype) if isinstance(given, Tensor) else f"a {type(given).__name__}"


def as_index(who: str, index: Tensor, device: torch.device) -> Tensor:
    """Indices as the kernels read them.

    Raises:
        SpecError: if they are not int64, too many, or on another device.
    """
    if not isinstance(index, Tensor) or index.dtype is not torch.int64:
        raise SpecError(f"{who}: indices are a tensor of torch.int64, got {came(index)}")
    if index.device != device:
        raise SpecError(f"{who}: this tree is on {device}, the indices are on {index.device}")
    if index.numel() > _MOST:
        raise SpecError(f"{who}: {index.numel()} entries; at most {_MOST} go into a call")
    return index.contiguous()


def as_batch(who: str, index: Tensor, value: Tensor, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Indices and values as the kernels read them.

    Raises:
        SpecError: if one of them is on another device, or the indices are not int64.
        ShapeError: if there is not one value for each index, or one for all.
    """
    index = as_index(who, index, device)
    if not isinstance(value, Tensor) or value.dtype.is_complex:
        raise SpecError(f"{who}: values are a tensor of real numbers, got {came(value)}")
    if value.requires_grad:
        value = value.detach()
    if value.device != device:
        raise SpecError(f"{who}: this tree is on {device}, the values are on {value.device}")
    if value.dtype is not dtype:
        value = value.to(dtype)
    if index.shape != value.shape and value.ndim:
        raise ShapeError(
            f"{who}: {tuple(value.shape)} values for {tuple(index.shape)} indices; give one value for each index, or a"
            " single one without dimensions"
        )
    return index, value.contiguous()


def check_beside(who: str, given: Tensor | None, shape: tuple[int, ...], like: Tensor) -> None:
    """Refuse what cannot be written beside the tree.

    Args:
        who: for messages.
        given: the tensor, if any.
        shape: that it is to have.
        like: of the tree's dtype and device.

    Raises:
        ShapeError: if it has another shape.
        SpecError: if it is of another dtype, on another device, or not contiguous.
    """
    if given is None:
        return
    if not isinstance(given, Tensor):
        raise SpecError(f"{who} is {came(given)}; it is a tensor of {like.dtype} on {like.device}")
    if given.shape != shape:
        raise ShapeError(f"{who} has the shape {tuple(given.shape)}; it is {shape}")
    if given.dtype is not like.dtype or given.device != like.device or not given.is_contiguous():
        raise SpecError(
            f"{who} is {given.dtype} on {given.device}; it is contiguous, {like.dtype} and on {like.device}"
        )


def check_apart(
    who: str, buffer: Tensor, index: Tensor, value: Tensor, raw: Tensor | None = None, largest: Tensor | None = None
) -> None:
    """Refuse a tensor that would be written and shares memory with another one of the call.

    Threads of a large update read values while others write: what they read would be a matter of luck.

    Args:
        who: for messages.
        buffer: of the tree, written.
        index: read; contiguous, as all are.
        value: read.
        raw: written, if any.
        largest: written, if any.

    Raises:
        SpecError: naming the two.
    """
    # In one line each, for every call: half of the time that a loop takes.
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
        _name_shared(who, buffer, index, value, raw, largest)


def _name_shared(
    who: str, buffer: Tensor, index: Tensor, value: Tensor, raw: Tensor | None, largest: Tensor | None
) -> None:
    """Raise which two of them share memory; nothing if the one that lies in another is empty."""
    start = buffer.data_ptr()
    written = [("the tree", start, start + buffer.nbytes)]
    for name, tensor in (("raw", raw), ("largest", largest), ("the indices", index), ("the values", value)):
        if tensor is None or not tensor.numel():
            continue
        first = tensor.data_ptr()
        last = first + tensor.nbytes
        for other, start, end in written:
            if first < end and start < last:
                _refuse_shared(who, name, other)
        if tensor is raw or tensor is largest:
            written.append((name, first, last))


def check_apart_traced(
    who: str, buffer: Tensor, index: Tensor, value: Tensor, raw: Tensor | None = None, largest: Tensor | None = None
) -> None:
    """The same for tensors without memory, while a graph is traced: those of one storage may overlap.

    Raises:
        SpecError: naming the two.
    """
    written = [("the tree", buffer)]
    for name, tensor in (("raw", raw), ("largest", largest), ("the indices", index), ("the values", value)):
        if tensor is None or not tensor.is_contiguous():  # which would be copied
            continue
        for other, given in written:
            if tensor.untyped_storage()._cdata == given.untyped_storage()._cdata and _overlap(tensor, given):  # noqa: SLF001  the only name of a storage without memory
                _refuse_shared(who, name, other)
        if tensor is raw or tensor is largest:
            written.append((name, tensor))


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Of two contiguous tensors of one storage."""
    first, start = (each.storage_offset() * each.element_size() for each in (one, other))
    return bool(first < start + other.nbytes and start < first + one.nbytes)


def _refuse_shared(who: str, one: str, other: str) -> NoReturn:
    raise SpecError(
        f"{who}: {one} and {other} share memory, and a call must not write what it reads; give a clone of one of them"
    )


def check_exponents(who: str, **given: float) -> None:
    """Refuse what is negative or not finite.

    Raises:
        SpecError: naming it.
    """
    for name, value in given.items():
        if not 0 <= value < float("inf"):
            raise SpecError(f"{who}: {name} is {value}; it is finite and at least 0")


def uniforms(who: str, n: int, u: Tensor | None, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """The randomness of `n` draws, float64 ``[n]`` on the device.

    Raises:
        SpecError: if `n` is no whole number, negative or too large, or `u` is no tensor.
        ShapeError: if `u` has another shape or device.
    """
    asked, n = n, whole(n)
    if not 0 <= n <= _MOST:
        raise SpecError(f"{who}: {asked} draws are asked for; it is a whole number of at least 0, at most {_MOST}")
    if u is None:
        if generator is None:  # not even named: torch takes no number that is open in a traced graph then
            return torch.rand(n, dtype=torch.float64, device=device)
        u = torch.rand(n, dtype=torch.float64, device=generator.device, generator=generator)
        return u if u.device == device else u.to(device, non_blocking=True)
    if not isinstance(u, Tensor):
        raise SpecError(f"{who}: u is {came(u)}; it is a tensor ({n},) on {device}")
    if u.shape != (n,) or u.device != device:
        raise ShapeError(f"{who}: u is {tuple(u.shape)} on {u.device}; it is ({n},) on {device}")
    return u.to(torch.float64).contiguous()
