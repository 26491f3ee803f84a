"""Base of the specs of discrete choices: counts, masks, samples, projection."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.specs._leaf import LeafSpec

__all__ = [
    "best_classes",
    "check_mask",
    "choose_classes",
    "draw_codes",
    "mask_text",
    "nearest_codes",
    "require_choice",
    "require_room",
]


def require_room(owner: LeafSpec, n: int, dtype: torch.dtype) -> None:
    """Raise if a dtype cannot hold the class ``n - 1``.

    Raises:
        SpecError: then.
    """
    last = 1 if dtype is torch.bool else n if dtype.is_floating_point else torch.iinfo(dtype).max
    if n - 1 > last:
        raise SpecError(f"{type(owner).__name__}: {dtype} cannot hold {n} classes, only {last + 1}: give a wider dtype")


def check_mask(owner: LeafSpec, mask: Any, shape: torch.Size) -> Tensor | None:
    """The mask as bool of `shape`.

    Raises:
        SpecError: if it has another shape or dtype.
    """
    if mask is None:
        return None
    mask = mask.to(owner.device) if isinstance(mask, Tensor) else torch.tensor(mask, device=owner.device)
    if mask.dtype is not torch.bool:
        raise SpecError(f"mask of {type(owner).__name__} must be bool, got {mask.dtype}")
    try:
        mask = mask.expand(shape)
    except RuntimeError as error:
        raise SpecError(
            f"mask of {type(owner).__name__} of shape {tuple(owner.shape)} must have shape {tuple(shape)},"
            f" got {tuple(mask.shape)}"
        ) from error
    return mask.clone()


def mask_text(mask: Tensor) -> str:
    """A small mask for a message; nothing for a large one."""
    return f"{mask.tolist()!r} " if mask.numel() <= 16 else ""


def require_choice(owner: LeafSpec, mask: Tensor | None) -> None:
    """Raise if a mask leaves nothing to choose.

    Raises:
        SpecError: if all classes of one choice are forbidden.
    """
    if mask is not None and not bool(mask.any(-1).all()):
        raise SpecError(f"mask of {type(owner).__name__} forbids every class of at least one choice")


def draw_codes(
    n: int, mask: Tensor | None, shape: torch.Size, device: torch.device, generator: torch.Generator | None
) -> Tensor:
    """Random classes, int64 ``[*shape]``; uniform among those that `mask` ``[*shape[-k:], n]`` allows."""
    if mask is None:
        return torch.randint(n, shape, device=device, generator=generator)
    keys = torch.rand(*shape, n, device=device, generator=generator)
    return keys.masked_fill(~mask, -1.0).argmax(-1)


def nearest_codes(codes: Tensor, n: int, mask: Tensor | None) -> Tensor:
    """The allowed classes nearest to `codes`, the lower of two; int64."""
    codes = codes.clamp(0, n - 1)
    if mask is None:
        return codes
    distance = (codes.unsqueeze(-1) - torch.arange(n, device=codes.device)).abs()
    return distance.masked_fill(~mask.to(codes.device), n).argmin(-1)


def best_classes(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The allowed classes of the highest scores, the lowest of equal ones; NaN is the lowest score. int64 ``[*B]``."""
    lowest = torch.finfo(torch.double).min
    scores = scores.double().nan_to_num(lowest, neginf=lowest)
    if mask is not None:
        scores = scores.masked_fill(~mask.to(scores.device), -torch.inf)
    return scores.argmax(-1)


def choose_classes(owner: LeafSpec, n: int, codes: Tensor, tensor: Tensor) -> Tensor:
    """The entries of `tensor` ``[*B, n]`` under `codes` ``[*B]``.

    Raises:
        SpecError: if the shapes do not agree.
    """
    if tensor.shape != (*codes.shape, n):
        raise SpecError(
            f"{type(owner).__name__}.index needs one number for each of {n} classes, shape"
            f" {(*codes.shape, n)}, got {tuple(tensor.shape)}"
        )
    return tensor.gather(-1, codes.unsqueeze(-1)).squeeze(-1)
