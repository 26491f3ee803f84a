"""The priority tree in plain torch for many leaves on a CPU: what is made again are the blocks that change."""

from __future__ import annotations

from math import inf, nextafter
from typing import Final, final

import numpy as np
import torch
from numpy.typing import NDArray
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

__all__ = ["BlockTree"]


@final
class BlockTree:
    """Blocks of leaves with a running sum in each, and one over the blocks; a `rl.core.interfaces.PriorityTree`.

    An update marks the blocks that it writes to. Before the next draw their sums are made again, from the leaves and
    never by adding a difference, so they do not drift and depend on the leaves alone. A draw searches the running sum
    over the blocks, then that of one block.

    Args:
        capacity: number of leaves, at least 1.
        device: of the CPU kind.
        dtype: of the priorities.

    Example:
        >>> tree = BlockTree(1000)
        >>> tree.update(torch.tensor([1, 999]), torch.tensor([1.0, 3.0]))
        >>> tree.total(), sorted(set(tree.sample(100)[0].tolist()))
        (tensor(4., dtype=torch.float64), [1, 999])
    """

    name = "torch"

    def __init__(self, capacity: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.capacity: Final = capacity
        self.device: Final = torch.device(device)
        self.dtype: Final = dtype
        self._bits: Final = _bits(capacity)
        shape = (((capacity - 1) >> self._bits) + 1, 1 << self._bits)
        self.why: Final = f"{shape[0]} blocks of {shape[1]} priorities, in plain torch"
        # Arrays alone, no tensors over their memory: a copy or a pickle of the tree would part the two.
        self._leaves: Floats = zeros(shape, dtype, device).numpy()
        self._running: Floats = zeros(shape, torch.float64, device).numpy()
        self._sums: Floats = np.zeros(shape[0])
        self._starts: Floats = np.zeros(shape[0] + 1)  # running sum over the blocks, from 0 to the total
        self._mins: Floats = np.full(shape[0], inf, self._leaves.dtype)  # of what is above zero
        self._stale: NDArray[np.bool_] = np.zeros(shape[0], np.bool_)
        self._changed = False

    def update(self, index: Tensor, priority: Tensor) -> None:
        """Set priorities ``[n]`` at ``[n]``; of a repeated index the last one counts.

        Raises:
            IndexError: if an index is outside ``[0, capacity)``.
            ValueError: if a priority is negative, infinite or not a number, or the shapes differ.
        """
        if is_dynamo_compiling():
            outside_graph(self.update, index, priority)
            return
        places, values, end = checked_arrays(self, self._leaves.dtype, index, priority)
        if not end:
            return
        self._leaves.reshape(-1)[places] = values
        self._stale[places >> self._bits] = True
        self._changed = True

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
        mark *= nextafter(checked_total(self._starts.item(-1)), 0)  # below the total, which no running sum exceeds
        index = self._search(mark) if n < SORTED else search_in_order(self._search, mark)
        return torch.from_numpy(index), torch.from_numpy(self._leaves.reshape(-1)[index])

    def get(self, index: Tensor) -> Tensor:
        """Priorities ``[n]``."""
        if is_dynamo_compiling():
            return outside_graph(self.get, index)
        return torch.from_numpy(self._leaves.reshape(-1)[: self.capacity])[index]

    def total(self) -> Tensor:
        """Sum of all, float64 scalar."""
        if is_dynamo_compiling():
            return outside_graph(self.total)
        self._add_up()
        return torch.tensor(self._starts.item(-1), dtype=torch.float64, device=self.device)

    def min(self) -> Tensor:
        """Smallest priority above zero; infinity if there is none."""
        if is_dynamo_compiling():
            return outside_graph(self.min)
        self._add_up()
        return torch.from_numpy(np.asarray(self._mins.item(self._mins.argmin()), self._mins.dtype))

    def max(self) -> Tensor:
        """Largest priority; zero if empty."""
        if is_dynamo_compiling():
            return outside_graph(self.max)
        return torch.from_numpy(self._leaves).amax()

    def _add_up(self) -> None:
        """Sums and smallest priorities of the blocks that were written to since the last time."""
        if not self._changed:
            return
        blocks = self._stale.nonzero()[0]
        if 3 * len(blocks) > len(self._stale):  # all, which is quicker than to pick so many
            self._mins[:] = _least_above_zero(self._leaves)
            self._running[:] = self._leaves
            torch.from_numpy(self._running).cumsum_(1)
            self._sums[:] = self._running[:, -1]
        else:
            leaves = self._leaves.take(blocks, 0)
            self._mins[blocks] = _least_above_zero(leaves)
            running = leaves.astype(np.float64)
            torch.from_numpy(running).cumsum_(1)
            self._running[blocks] = running
            self._sums[blocks] = running[:, -1]
        torch.cumsum(torch.from_numpy(self._sums), 0, out=torch.from_numpy(self._starts[1:]))
        self._stale.fill(False)  # noqa: FBT003  an array takes it so
        self._changed = False

    def _search(self, mark: Floats) -> Places:
        """For each mark the first leaf at which the sum of all leaves before it, and of it, exceeds the mark."""
        block = self._starts[1:].searchsorted(mark, side="right")
        # Below the sum of the block, to which rounding could lift what is left of a mark.
        rest = np.minimum(mark - self._starts[block], np.nextafter(self._sums[block], 0))
        leaf = block << self._bits
        running = self._running.reshape(-1)
        for bit in reversed(range(self._bits)):
            step = 1 << bit
            leaf += (running[step - 1 :][leaf] <= rest) * step
        return leaf


def _bits(capacity: int) -> int:
    """Blocks hold 2 to this power: 32 at least, else about the root of capacity / 640, best for some hundred rows."""
    return max(5, ((capacity - 1) // 640).bit_length() + 1 >> 1)


def _least_above_zero(leaves: Floats) -> Floats:
    """Of each row; infinity if there is none."""
    least: Floats = torch.from_numpy(leaves).amin(1).numpy()  # numpy takes several times as long for short rows
    zero = (least == 0).nonzero()[0]
    if len(zero):
        some = leaves[zero]
        least[zero] = np.where(some == 0, inf, some).min(1)
    return least
