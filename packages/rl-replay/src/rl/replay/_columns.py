"""Copies of stored rows: one by one, or a run of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

import torch
from torch import Tensor

from rl.core.keys import NestedKey

__all__ = ["Columns", "flat_rows"]

_NOT_ALONG_ONE: Final = {torch.uint16, torch.uint32, torch.uint64}  # torch picks these out of matrices only
View = tuple[NestedKey, Tensor, torch.Size]
"""A column in the form in which torch copies rows of it most quickly, and the shape of a row."""


def flat_rows(tensor: Tensor) -> Tensor:
    """`tensor` ``[n, ...]`` as torch copies its rows most quickly: ``[n]`` if a row is one number.

    Example:
        >>> flat_rows(torch.zeros(5, 1)).shape, flat_rows(torch.zeros(5, 3)).shape
        (torch.Size([5]), torch.Size([5, 3]))
    """
    if tensor.shape[1:].numel() != 1 or not tensor.is_contiguous():
        return tensor
    return tensor.view(-1, 1) if tensor.dtype in _NOT_ALONG_ONE else tensor.view(-1)


@final
class Columns:
    """The tensors of a storage, ``[max_size, ...]`` each; views of their written part are made once for each length.

    Args:
        tensors: by key.

    Example:
        >>> columns = Columns([("x", torch.arange(6).unsqueeze(-1))])
        >>> columns.rows(6, torch.tensor([4, 0]))["x"].tolist()
        [[4], [0]]
        >>> columns.runs(6, torch.tensor([3, 1]), 2)["x"].tolist()
        [[3], [4], [1], [2]]
    """

    def __init__(self, tensors: Sequence[tuple[NestedKey, Tensor]]) -> None:
        self._tensors: Final = tensors
        self._rows: tuple[int, list[View]] = (-1, [])
        self._runs: tuple[int, int, list[View]] = (-1, -1, [])
        self._in_line: Final = all(tensor.is_contiguous() and tensor[:1].numel() for _, tensor in tensors)

    def __reduce__(self) -> tuple[type[Columns], tuple[Any]]:
        return Columns, (self._tensors,)  # without the views: each would bring all of its memory along

    def rows(self, written: int, index: Tensor) -> dict[NestedKey, Tensor]:
        """Of the first `written` rows those under `index` ``[n]``, which is on their device; ``[n, ...]``.

        Raises:
            IndexError: if an index is outside of them.
        """
        count = len(index)
        return {key: view.index_select(0, index).view(count, *row) for key, view, row in self._written_rows(written)}

    def runs(self, written: int, begin: Tensor, steps: int) -> dict[NestedKey, Tensor] | None:
        """The `steps` rows from each of `begin` ``[n]`` on, ``[n * steps, ...]``: each run is copied at once.

        Returns:
            None if there is a tensor whose rows do not lie one behind the other.

        Raises:
            IndexError: if a run is outside of the first `written` rows.
        """
        if not self._in_line:
            return None
        if steps > written:
            raise IndexError(f"a run of {steps} rows, and {written} are written")
        views = self._written_runs(written, steps)
        return {key: view.index_select(0, begin).view(-1, *row) for key, view, row in views}

    def _written_rows(self, written: int) -> list[View]:
        """Of the written part, so that torch itself checks bounds."""
        known, views = self._rows
        if known != written:
            views = [(key, flat_rows(tensor[:written]), tensor.shape[1:]) for key, tensor in self._tensors]
            self._rows = (written, views)
        return views

    def _written_runs(self, written: int, steps: int) -> list[View]:
        """Each tensor as a matrix of all runs, which overlap in memory."""
        known, length, views = self._runs
        if known != written or length != steps:
            views = [
                (key, tensor.as_strided((written - steps + 1, steps * size), (size, 1)), tensor.shape[1:])
                for key, tensor in self._tensors
                if (size := tensor.shape[1:].numel())
            ]
            self._runs = (written, steps, views)
        return views
