"""Collation of a list of rows into a batch."""

from __future__ import annotations

from typing import Any

import torch

from rl.core.errors import ShapeError
from rl.replay._kinds import is_batched

__all__ = ["collate"]


def collate(rows: Any) -> Any:
    """Stack a list of TensorDicts, tensorclasses or tensors ``[...]`` to ``[n, ...]``, and return anything else.

    Raises:
        ShapeError: if the rows cannot be stacked.

    Example:
        >>> collate([torch.zeros(3), torch.ones(3)]).shape, collate(["left", "right"])
        (torch.Size([2, 3]), ['left', 'right'])
    """
    if not isinstance(rows, list) or not rows:
        return rows
    if not all(is_batched(row) for row in rows):
        return rows
    try:
        return torch.stack(rows)
    except (RuntimeError, KeyError, ValueError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise ShapeError(
            f"these {len(rows)} rows differ and cannot be stacked ({reason}): give the buffer a collate_fn that "
            "makes a batch of a list of rows"
        ) from error
