"""Copies of stored rows, one by one or a run of them at once; selection of the back end, and plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

import torch
from torch import Tensor

from rl.core.interfaces import RowGather
from rl.core.registry import default

__all__ = ["TorchRowGather", "flat_rows", "row_gather"]

_NOT_ALONG_ONE: Final = {torch.uint16, torch.uint32, torch.uint64}  # index_select supports these in two dimensions only
View = tuple[Tensor, torch.Size]
"""A tensor in the shape that `index_select` copies fastest, and the shape of a row."""


def row_gather(tensors: Sequence[Tensor]) -> RowGather:
    """Row copies for these tensors: the first result of `rl_row_gather`, else plain torch."""
    found = default().answer("rl_row_gather", tensors=tensors) if tensors else None
    return TorchRowGather(tensors) if found is None else found.value


def flat_rows(tensor: Tensor) -> Tensor:
    """`tensor` ``[n, ...]`` in the shape that torch copies fastest: ``[n]`` if a row has one element.

    Example:
        >>> flat_rows(torch.zeros(5, 1)).shape, flat_rows(torch.zeros(5, 3)).shape
        (torch.Size([5]), torch.Size([5, 3]))
    """
    if tensor.shape[1:].numel() != 1:
        return tensor
    return tensor.view(-1, 1) if tensor.dtype in _NOT_ALONG_ONE else tensor.view(-1)


@final
class TorchRowGather:
    """Row gather of tensors ``[capacity, ...]`` in plain torch; views of the written part are cached.

    Example:
        >>> gather = TorchRowGather([torch.arange(6).unsqueeze(-1)])
        >>> gather.rows(6, torch.tensor([4, 0]))[0].tolist()
        [[4], [0]]
        >>> gather.runs(6, torch.tensor([3, 1]), 2)[0].tolist()
        [[3], [4], [1], [2]]
    """

    name = "torch"
    why = "no installed plugin offers another"

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors: Final = tuple(tensors)
        self._rows: tuple[int, list[View]] = (-1, [])
        self._runs: tuple[tuple[int, int, int], list[tuple[Tensor, tuple[int, ...]]]] = ((-1, -1, -1), [])

    def __reduce__(self) -> tuple[type[TorchRowGather], tuple[Any]]:
        return TorchRowGather, (self._tensors,)  # without views: each is pickled with all of its memory

    def rows(self, written: int, index: Tensor) -> list[Tensor]:
        """Copies ``[n, ...]`` of the rows `index` ``[n]``, on the device of the tensors, of the first `written` rows.

        Raises:
            IndexError: if an index is outside ``[0, written)``.
        """
        count = len(index)
        return [view.index_select(0, index).view(count, *row) for view, row in self._written_rows(written)]

    def runs(self, written: int, begin: Tensor, steps: int) -> list[Tensor]:
        """Copies ``[n * steps, ...]`` of `steps` adjacent rows from each of `begin` ``[n]``.

        Raises:
            IndexError: if a run is outside of the first `written` rows.
        """
        wanted = written, steps, begin.numel()
        known, views = self._runs
        if known != wanted:
            views = self._written_runs(*wanted)
        return [view.index_select(0, begin).view(shape) for view, shape in views]

    def _written_rows(self, written: int) -> list[View]:
        """Views of the written part, so that torch checks bounds."""
        known, views = self._rows
        if known != written:
            views = [(flat_rows(tensor[:written]), tensor.shape[1:]) for tensor in self._tensors]
            self._rows = (written, views)
        return views

    def _written_runs(self, written: int, steps: int, runs: int) -> list[tuple[Tensor, tuple[int, ...]]]:
        """Overlapping views of all runs of each tensor, and the shape of a sample."""
        if steps > written:
            raise IndexError(f"a run of {steps} rows, and {written} are written")
        views = [
            (_runs_of(tensor, written - steps + 1, steps), (runs * steps, *tensor.shape[1:]))
            for tensor in self._tensors
        ]
        self._runs = (written, steps, runs), views
        return views


def _runs_of(tensor: Tensor, runs: int, steps: int) -> Tensor:
    """View ``[runs, steps, ...]``; a matrix if the tensor is contiguous, so that a run is one piece of memory."""
    if tensor.is_contiguous():
        size = tensor.shape[1:].numel()
        return tensor.as_strided((runs, steps * size), (size, 1))
    stride, *inside = tensor.stride()
    return tensor.as_strided((runs, steps, *tensor.shape[1:]), (stride, stride, *inside))
