"""The priority tree in plain torch for few leaves on a CPU: an array of priorities and its running sum."""

from __future__ import annotations

from math import inf, nextafter
from typing import Final, final

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from rl.replay._priority.checks import (
    SORTED,
    Floats,
    Places,
    checked_arrays,
    checked_total,
    outside_graph,
    search_in_order,
    uniform,
    zeros,
)

__all__ = ["PrefixTree"]


@final
class PrefixTree:
    """An array of priorities and its running sum, made again after an update; a `rl.core.interfaces.PriorityTree`.

    A draw is a search in the running sum. Zero is never drawn because the sum is made in order: behind a zero it is
    the same to the last bit.

    Args:
        capacity: number of leaves, at least 1.
        device: of the CPU kind.
        dtype: of the priorities.

    Example:
        >>> tree = PrefixTree(4)
        >>> tree.update(torch.tensor([1, 3]), torch.tensor([1.0, 3.0]))
        >>> tree.total(), sorted(set(tree.sample(100)[0].tolist()))
        (tensor(4., dtype=torch.float64), [1, 3])
    """

    name = "torch"

    def __init__(self, capacity: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.capacity: Final = capacity
        self.device: Final = torch.device(device)
        self.dtype: Final = dtype
        self.why: Final = f"one running sum over {capacity} priorities, in plain torch"
        # Arrays alone, no tensors over their memory: a copy or a pickle of the tree would part the two.
        self._priority: Floats = zeros(capacity, dtype, device).numpy()
        self._sum: Floats = zeros(capacity, torch.float64, device).numpy()
        self._total = 0.0
        self._least: float | None = None
        self._used = 0  # leaves behind these were never written
        self._stale = False

    def update(self, index: Tensor, priority: Tensor) -> None:
        """Set priorities ``[n]`` at ``[n]``; of a repeated index the last one counts.

        Raises:
            IndexError: if an index is outside ``[0, capacity)``.
            ValueError: if a priority is negative, infinite or not a number, or the shapes differ.
        """
        if is_dynamo_compiling():
            outside_graph(self.update, index, priority)
            return
        places, values, end = checked_arrays(self, self._priority.dtype, index, priority)
        if not end:
            return
        self._priority[places] = values
        self._used = max(self._used, end)
        self._stale, self._least = True, None

    def sample(
        self, n: int, *, generator: torch.Generator | None = None, stratified: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Draw indices ``[n]`` in proportion to priority, and those priorities ``[n]``.

        Raises:
            ValueError: if the total is zero or infinite.
        """
        if is_dynamo_compiling():
            return outside_graph(self.sample, n, generator=generator, stratified=stratified)
        self._add_up()
        mark: Floats = uniform(n, self.device, generator, stratified=stratified).numpy()
        mark *= nextafter(checked_total(self._total), 0)  # below the total, which no running sum exceeds
        index = self._search(mark) if n < SORTED else search_in_order(self._search, mark)
        return torch.from_numpy(index), torch.from_numpy(self._priority[index])

    def get(self, index: Tensor) -> Tensor:
        """Priorities ``[n]``."""
        if is_dynamo_compiling():
            return outside_graph(self.get, index)
        return torch.from_numpy(self._priority)[index]

    def total(self) -> Tensor:
        """Sum of all, float64 scalar."""
        if is_dynamo_compiling():
            return outside_graph(self.total)
        self._add_up()
        return torch.tensor(self._total, dtype=torch.float64, device=self.device)

    def _add_up(self) -> None:
        """The running sum, made again only after an update."""
        if self._stale:
            self._sum[:] = self._priority
            torch.from_numpy(self._sum).cumsum_(0)  # numpy takes twice as long
            self._total, self._stale = self._sum.item(-1), False

    def _search(self, mark: Floats) -> Places:
        """For each mark the first leaf whose running sum exceeds it."""
        return self._sum.searchsorted(mark, side="right")

    def min(self) -> Tensor:
        """Smallest priority above zero; infinity if there is none."""
        if is_dynamo_compiling():
            return outside_graph(self.min)
        if self._least is None:
            used = self._priority[: self._used]
            self._least = used.item(used.argmin()) if self._used else inf
            if not self._least:
                self._least = np.where(used == 0, inf, used).min().item()
        return torch.from_numpy(np.asarray(self._least, self._priority.dtype))

    def max(self) -> Tensor:
        """Largest priority; zero if empty."""
        if is_dynamo_compiling():
            return outside_graph(self.max)
        return torch.from_numpy(self._priority).amax()
