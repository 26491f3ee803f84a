"""Partial resets: fresh data where a mask ``_reset`` is set, the last data elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import ContractError, ShapeError
from rl.core.keys import DONE, RESET, as_tuple, key_str, unwrap
from rl.core.mdp._done_flags import Keys, Level, done_levels

__all__ = ["merge_reset", "reset_masks", "where_reset"]


def reset_masks(tensordict: Any, done_keys: Keys = DONE) -> dict[Level, Tensor]:
    """The masks ``_reset`` by level; a mask at the root overrides those below. No mask means: all of that level."""
    root = tensordict.get(RESET, None)
    if root is not None:
        return {(): root}
    found = {level: tensordict.get(unwrap((*level, RESET)), None) for level in done_levels(done_keys)}
    return {level: mask for level, mask in found.items() if mask is not None}


def where_reset(mask: Tensor, fresh: Any, current: Any) -> Any:
    """`fresh` where the mask is set, else `current`.

    Args:
        mask: bool ``[*B, 1]``.
        fresh: ``[*B, ...]``, a tensor or non-tensor data.
        current: the same shape.

    Raises:
        ShapeError: if the shapes do not agree.
    """
    mask = mask.squeeze(-1)
    if fresh.shape != current.shape or fresh.shape[: mask.ndim] != mask.shape:
        raise ShapeError(
            f"a partial reset with a mask of shape {(*mask.shape, 1)} meets fresh data of shape {tuple(fresh.shape)}"
            f" and current data of shape {tuple(current.shape)}"
        )
    if isinstance(fresh, Tensor):
        return torch.where(mask.reshape(mask.shape + (1,) * (fresh.ndim - mask.ndim)), fresh, current)
    if not mask.ndim:
        return (fresh if bool(mask) else current).clone()
    rows = [where_reset(m.unsqueeze(-1), f, c) for m, f, c in zip(mask, fresh, current, strict=True)]
    return torch.stack(rows)


def merge_reset(current: Mapping[Any, Any], fresh: Mapping[Any, Any], masks: Mapping[Level, Tensor]) -> dict[Any, Any]:
    """Fresh leaves where masks are set, current ones elsewhere: what a partial reset returns, on leaves.

    Args:
        current: leaves by flat key, with the data of all that is not reset.
        fresh: leaves by flat key, as a full reset gives them.
        masks: by level, from `reset_masks`; an entry obeys the mask of the innermost level that holds it.

    Raises:
        ContractError: if an entry is absent in `current` though not everything is reset.
    """
    # A mask on a CUDA device is not read, which would wait for all work before it: `where_reset` is right for any mask.
    partial = {level: mask for level, mask in masks.items() if mask.is_cuda or not bool(mask.all())}
    out: dict[Any, Any] = {}
    for key, value in fresh.items():
        path = as_tuple(key)
        levels = [level for level in masks if path[: len(level)] == level and len(path) > len(level)]
        level = max(levels, key=len, default=None)
        if level not in partial:
            out[key] = value
            continue
        old = current.get(key, None)
        if old is None and partial[level].is_cuda and bool(partial[level].all()):
            out[key] = value
            continue
        if old is None:
            raise ContractError(
                f"a partial reset reads {key_str(key)} of what is not reset, which is not in the input"
                f" (keys: {list(current.keys())}); pass the data of the last step along with '_reset'"
            )
        out[key] = where_reset(partial[level], value, old)
    return out
