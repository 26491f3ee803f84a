"""Priority trees in plain torch: the answer where no accelerator is installed, on every device.

Three forms with the same results in distribution. On a CPU `PrefixTree`, and above `PREFIX_UP_TO` leaves `BlockTree`;
on other devices `WideTree`: sums of 32 children each, of which an update makes again only those above the leaves that
it wrote.

Sums and random marks are float64: with 24 bits the marks of a million leaves would not reach each of them alike.
"""

from __future__ import annotations

from typing import Final, final

import torch
from torch import Tensor

from rl.replay._priority.block_tree import BlockTree
from rl.replay._priority.checks import checked_total, checked_update, uniform, write_in_order, zeros
from rl.replay._priority.prefix_tree import PrefixTree

__all__ = ["PREFIX_UP_TO", "WideTree", "torch_tree"]

PREFIX_UP_TO = 65_536
"""Where the two forms of the CPU take equally long for batches of 256."""

_FAN_OUT = 32

_WHOLE = 64
"""Children per draw up to which it is cheaper to add up a whole level than to walk down to it, measured up to 10^7."""


def torch_tree(
    capacity: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> PrefixTree | BlockTree | WideTree:
    """The form that is faster for this capacity and device.

    Args:
        capacity: number of leaves.
        device: where priorities live.
        dtype: of the priorities.

    Example:
        >>> type(torch_tree(100)).__name__, type(torch_tree(10**6)).__name__
        ('PrefixTree', 'BlockTree')
    """
    device = torch.device(device)
    if device.type != "cpu":
        return WideTree(capacity, device, dtype)
    return (PrefixTree if capacity <= PREFIX_UP_TO else BlockTree)(capacity, device, dtype)


@final
class WideTree:
    """Levels of sums, each over 32 entries of the level below; a `rl.core.interfaces.PriorityTree`.

    Sums are always made from the children, never by adding a difference, so they do not drift and depend on the
    leaves alone.

    Args:
        capacity: number of leaves, at least 1.
        device: where priorities live.
        dtype: of the priorities.

    Example:
        >>> tree = WideTree(1000)
        >>> tree.update(torch.tensor([1, 999]), torch.tensor([1.0, 3.0]))
        >>> tree.total(), sorted(set(tree.sample(100)[0].tolist()))
        (tensor(4., dtype=torch.float64), [1, 999])
    """

    name = "torch"

    def __init__(self, capacity: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.capacity: Final = capacity
        self.device: Final = torch.device(device)
        self.dtype: Final = dtype
        self._levels = [zeros((-(-capacity // _FAN_OUT), _FAN_OUT), dtype, device)]
        while len(below := self._levels[-1]) > 1:
            rows = -(-len(below) // _FAN_OUT)
            self._levels.append(zeros((rows, _FAN_OUT), torch.float64, device))
        blocks = len(self._levels[0])
        self._mins = torch.full((blocks,), torch.inf, device=device, dtype=dtype)
        self._maxs = torch.zeros(blocks, device=device, dtype=dtype)
        self.why: Final = f"{len(self._levels)} levels of 32 children over {capacity} priorities, in plain torch"

    def update(self, index: Tensor, priority: Tensor) -> None:
        """Set priorities ``[n]`` at ``[n]``; of a repeated index the last one counts.

        Raises:
            IndexError: if an index is outside ``[0, capacity)``.
            ValueError: if a priority is negative, infinite or not a number, or the shapes differ.
        """
        index, priority = checked_update(self, index, priority)
        if not index.numel():
            return
        leaves = self._levels[0]
        write_in_order(leaves.view(-1), index, priority)
        rows = _rows_above(index, leaves)
        block = leaves if rows is None else leaves.index_select(0, rows)
        _put(self._mins, rows, _above_zero(block).amin(-1))
        _put(self._maxs, rows, block.amax(-1))
        for level, above in zip(self._levels, self._levels[1:], strict=False):
            rows = _rows_above(index, level)
            block = level if rows is None else level.index_select(0, rows)
            _put(above.view(-1), rows, _running(block)[:, -1])
            index = torch.arange(len(level), device=index.device) if rows is None else rows

    def sample(
        self, n: int, *, generator: torch.Generator | None = None, stratified: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Draw indices ``[n]`` in proportion to priority, and those priorities ``[n]``.

        Raises:
            ValueError: if the total is zero or infinite.
        """
        total = checked_total(self.total().item())
        rest = uniform(n, self.device, generator, stratified=stratified).mul_(total)
        top = self._first_level(n)
        node, rest = _search_all(self._levels[top], rest)
        for level in reversed(self._levels[:top]):
            running = _running(level.index_select(0, node))
            last = torch.searchsorted(running, running[:, -1:].contiguous())
            child = torch.searchsorted(running, rest.unsqueeze(-1), right=True).minimum(last)
            before = running.gather(-1, (child - 1).clamp_(min=0)).masked_fill_(child == 0, 0).squeeze(-1)
            rest = (rest - before).clamp_(min=0)
            node = node * _FAN_OUT + child.squeeze(-1)
        return node, self._levels[0].view(-1).index_select(0, node)

    def _first_level(self, n: int) -> int:
        """The lowest level that is cheaper added up whole than walked by each of `n` draws."""
        top = len(self._levels) - 1
        while top and self._levels[top - 1].numel() <= _WHOLE * n:
            top -= 1
        return top

    def get(self, index: Tensor) -> Tensor:
        """Priorities ``[n]``."""
        return self._levels[0].view(-1)[: self.capacity][index]

    def total(self) -> Tensor:
        """Sum of all, float64 scalar."""
        return _running(self._levels[-1])[0, -1].clone()

    def min(self) -> Tensor:
        """Smallest priority above zero; infinity if there is none."""
        return self._mins.amin()

    def max(self) -> Tensor:
        """Largest priority; zero if empty."""
        return self._maxs.amax()


def _search_all(level: Tensor, mark: Tensor) -> tuple[Tensor, Tensor]:
    """Of all children of a level: the one in which each mark falls, and what is left of the mark there.

    That is the first whose running sum exceeds the mark; never one that is zero, and one that exists where rounding has
    lifted the mark to the sum of all.
    """
    running = _running(level.view(1, -1))[0]
    last = torch.searchsorted(running, running[-1:])
    child = torch.searchsorted(running, mark, right=True).minimum(last)
    before = running.index_select(0, (child - 1).clamp_(min=0)).masked_fill_(child == 0, 0)
    return child, (mark - before).clamp_(min=0)


def _above_zero(priority: Tensor) -> Tensor:
    return priority.masked_fill(priority == 0, torch.inf)


def _running(block: Tensor) -> Tensor:
    """Running sums ``[n, 32]``, float64; a child that is zero repeats the sum before it to the last bit."""
    running = block.cumsum(-1, dtype=torch.float64)
    if block.device.type == "cpu":
        return running  # adds in order
    # A parallel sum may round differently behind a zero, and even decrease.
    return running.masked_fill_(block == 0, 0).cummax(-1).values


def _rows_above(index: Tensor, level: Tensor) -> Tensor | None:
    """The rows of `level` that hold `index`; None for all, where picking would take longer."""
    return None if 2 * len(index) >= len(level) else torch.unique(index // _FAN_OUT)


def _put(target: Tensor, rows: Tensor | None, values: Tensor) -> None:
    if rows is None:
        target[: len(values)] = values
    else:
        target.index_copy_(0, rows, values)
