"""Partial resets: which elements start anew, and how their entries are put among the others'."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from rl.core.errors import ContractError, ShapeError
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from torch import Tensor

__all__ = ["Masks", "fit_mask", "merge", "take_masks"]

Masks = dict[tuple[str, ...], Tensor]
"""Reset masks by the prefix of the done group to which they belong."""


def fit_mask(mask: Tensor, like: Tensor, batch_ndim: int) -> Tensor:
    """`mask` in a form that `torch.where` spreads over `like`.

    Args:
        mask: bool ``[*B, ..., 1]``.
        like: ``[*B, ...]``.
        batch_ndim: number of dimensions of ``*B``.

    Example:
        >>> fit_mask(torch.tensor([[True], [False]]), torch.zeros(2, 3, 4), 1).shape
        torch.Size([2, 1, 1])
    """
    lead = mask.shape[:-1]
    if like.shape[: len(lead)] != lead:
        mask, lead = mask.flatten(batch_ndim).any(-1), mask.shape[:batch_ndim]
    return mask.reshape(lead + (1,) * (like.ndim - len(lead)))


def take_masks(td: Any, reset_keys: Iterable[NestedKey], done_spec: Any, owner: str) -> Masks | None:
    """Take the ``_reset`` entries out of `td`.

    Returns:
        None if there is none: everything is reset.

    Raises:
        ShapeError: if a mask is not bool or has not the shape of the done flag beside it.
    """
    keys = [unwrap(key) for key in reset_keys]
    given = {key: mask for key in {*keys, "_reset"} if (mask := td.get(key, None)) is not None}
    if not given:
        return None
    for key, mask in given.items():
        done = unwrap((*as_tuple(key)[:-1], "done"))
        if key in keys and (mask.dtype != torch.bool or mask.shape != done_spec[done].shape):
            raise ShapeError(
                f"{owner}.reset was given {key_str(key)} of {mask.dtype} {tuple(mask.shape)}; it must be torch.bool"
                f" {tuple(done_spec[done].shape)}, as {key_str(done)}"
            )
    for key in given:
        del td[key]
    whole = given.get("_reset")
    masks: Masks = {}
    for key in keys:
        prefix = as_tuple(key)[:-1]
        like = done_spec[unwrap((*prefix, "done"))]
        mask = given.get(key)
        if whole is not None and prefix:
            mask = fit_mask(whole, torch.empty(like.shape, device="meta"), whole.ndim - 1).expand(like.shape)
        masks[prefix] = torch.ones(like.shape, dtype=torch.bool, device=like.device) if mask is None else mask
    return masks


def mask_of(key: NestedKey, masks: Masks, batch_ndim: int) -> Tensor:
    """The mask that governs an entry: that of the innermost group that holds it, else the union of all."""
    parts = as_tuple(key)
    for length in range(len(parts) - 1, -1, -1):
        if parts[:length] in masks:
            return masks[parts[:length]]
    union = [mask.flatten(batch_ndim).any(-1) for mask in masks.values()]
    return torch.stack(union).any(0).unsqueeze(-1)


def merge(
    fresh: Mapping[NestedKey, Any], current: Any, masks: Masks, batch_ndim: int, owner: str
) -> dict[NestedKey, Any]:
    """The entries of `fresh` where a mask is true, those of `current` elsewhere. Writes into neither.

    Raises:
        ContractError: if `current` lacks an entry.
        ShapeError: if an entry of `current` has another shape.
    """
    out: dict[NestedKey, Any] = {}
    for key, new in fresh.items():
        old = current.get(key, None)
        if old is None:
            raise ContractError(
                f"{owner}.reset of some elements needs the entry {key_str(key)} of the others, which its input lacks;"
                " pass the root entries of all elements, as step_mdp returns them"
            )
        mask = mask_of(key, masks, batch_ndim)
        if not isinstance(new, Tensor):
            kept = old.clone()
            kept[mask.flatten(batch_ndim).any(-1)] = new[mask.flatten(batch_ndim).any(-1)]
            out[key] = kept
            continue
        if old.shape != new.shape:
            raise ShapeError(
                f"{owner}.reset of some elements: entry {key_str(key)} is {tuple(old.shape)} in the input and"
                f" {tuple(new.shape)} after the reset"
            )
        out[key] = torch.where(fit_mask(mask, new, batch_ndim), new, old)
    return out
