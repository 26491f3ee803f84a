"""Conversion of a batch of sequences of any shape to rows ``[B, T]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import ShapeError

__all__ = ["Rows", "rows_of"]


@dataclass(frozen=True)
class Rows:
    """Mapping between the steps of a batch and rows.

    Args:
        batch: the shape of the batch; the last dimension is time.
        count: number of rows.
        place: int64 ``[rows, T]``, the step of a flat batch at each place; a view if None.
        back: int64 ``[N]``, the place of each step of a flat batch.
    """

    batch: tuple[int, ...]
    count: int
    place: Tensor | None = None
    back: Tensor | None = None

    def split(self, steps: Tensor) -> Tensor:
        """``[*B, T, ...]`` to ``[rows, T, ...]``."""
        if self.place is not None:
            return steps[self.place]
        return steps.reshape(self.count, -1, *steps.shape[len(self.batch) :])

    def join(self, rows: Tensor) -> Tensor:
        """The inverse of `split`."""
        if self.back is not None:
            return rows.flatten(0, 1)[self.back]
        return rows.reshape(*self.batch, *rows.shape[2:])


def rows_of(is_init: Tensor, owner: str) -> Rows:
    """Rows of a batch ``[*B, T]``; a flat one ``[N]`` is cut where ``is_init`` is true.

    Pieces of one length become one row each, without a copy. Others are concatenated into rows as
    long as the longest, so that at most half of the computation is padding.

    Args:
        is_init: bool ``[*B, T, 1]``.
        owner: the component named in messages.

    Raises:
        ShapeError: if there is no step.
    """
    batch = tuple(is_init.shape[:-1])
    if not batch or is_init.numel() == 0:
        raise ShapeError(
            f"{owner} is in sequence mode, where the last batch dimension is time, and got the batch {batch}: give it a"
            " batch [*B, T] with steps in it, or run single steps with set_recurrent_mode(False)"
        )
    if len(batch) > 1:
        return Rows(batch, is_init.numel() // batch[-1])
    count, place, back = _cut(is_init)
    return Rows(batch, count, place, back)


def _cut_here(is_init: Tensor) -> tuple[int, Tensor | None, Tensor | None]:
    flat = is_init.flatten()
    total = len(flat)
    starts: list[int] = [0, *(start for start in flat.nonzero().flatten().tolist() if start)]
    ends = [*starts[1:], total]
    longest = max(end - start for start, end in zip(starts, ends, strict=True))
    rows = [0]
    for start, end in zip(starts, ends, strict=True):
        if end - rows[-1] > longest:
            rows.append(start)
    if rows == list(range(0, total, longest)) and total == len(rows) * longest:
        return len(rows), None, None
    first = torch.tensor([*rows, total], device=flat.device)
    offsets = torch.arange(longest, device=flat.device)
    place = first[:-1].unsqueeze(1) + offsets
    back = (offsets < first.diff().unsqueeze(1)).flatten().nonzero().squeeze(1)
    return len(rows), place.clamp_(max=total - 1), back


_cut: Any = torch.compiler.disable(
    _cut_here, reason="a flat batch [N] is cut by data: give compiled functions a batch [B, T]"
)
