"""Collation of a list of rows into a batch."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ShapeError

__all__ = ["collate"]


def collate(rows: Any) -> Any:
    """Stack a list of TensorDicts or tensors ``[...]`` to ``[n, ...]``; anything else is returned as it is.

    Raises:
        ShapeError: if the rows cannot be stacked.

    Example:
        >>> collate([torch.zeros(3), torch.ones(3)]).shape, collate(["left", "right"])
        (torch.Size([2, 3]), ['left', 'right'])
    """
    if not isinstance(rows, list) or not rows:
        return rows
    if not all(isinstance(row, (TensorDictBase, Tensor)) for row in rows):
        return rows
    try:
        return torch.stack(rows)
    except (RuntimeError, KeyError, ValueError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise ShapeError(
            f"these {len(rows)} rows differ and cannot be stacked ({reason}): give the buffer a collate_fn that "
            "makes a batch of a list of rows"
        ) from error
