"""What is given to a tree, checked by shape, type and device; no value of a tensor is looked at, nothing waits."""

from __future__ import annotations

import torch
from torch import Tensor

from rl.core.errors import ShapeError, SpecError

__all__ = ["as_batch", "as_index", "check_beside", "check_exponents", "uniforms"]

_MOST = 2**31 - 2  # entries of a batch: their places are kept as int32


def as_index(who: str, index: Tensor, device: torch.device) -> Tensor:
    """Indices as the kernels read them.

    Raises:
        SpecError: if they are not int64, too many, or on another device.
    """
    if index.dtype is not torch.int64:
        raise SpecError(f"{who}: indices are torch.int64; these are {index.dtype}")
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
    if given.shape != shape:
        raise ShapeError(f"{who} has the shape {tuple(given.shape)}; it is {shape}")
    if given.dtype is not like.dtype or given.device != like.device or not given.is_contiguous():
        raise SpecError(
            f"{who} is {given.dtype} on {given.device}; it is contiguous, {like.dtype} and on {like.device}"
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
        SpecError: if `n` is negative or too large.
        ShapeError: if `u` has another shape or device.
    """
    if not 0 <= n <= _MOST:
        raise SpecError(f"{who}: {n} draws are asked for; it is at least 0, at most {_MOST}")
    if u is None:
        source = device if generator is None else generator.device
        u = torch.rand(n, dtype=torch.float64, device=source, generator=generator)
        return u if source == device else u.to(device, non_blocking=True)
    if u.shape != (n,) or u.device != device:
        raise ShapeError(f"{who}: u is {tuple(u.shape)} on {u.device}; it is ({n},) on {device}")
    return u.to(torch.float64).contiguous()
