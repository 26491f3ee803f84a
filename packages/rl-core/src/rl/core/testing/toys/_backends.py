"""The simplest things that keep to the accelerator interfaces: for tests of hooks, and to read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl.core.arguments import same_shape
from rl.core.errors import BackendError
from rl.core.recurrent import RecurrentOptions
from rl.core.testing.backends._check_recurrent_backend import recurrent_reference

__all__ = ["ToyPriorityTree", "ToyRecurrentBackend", "ToyRowGather", "toy_linear_recurrence"]


class ToyPriorityTree:
    """A priority tree that is an array: every draw adds up all priorities.

    Args:
        capacity: number of leaves, at least 1.
        device: where priorities live.
        dtype: of the priorities.

    Example:
        >>> tree = ToyPriorityTree(4)
        >>> tree.update(torch.tensor([1, 3]), torch.tensor([1.0, 3.0]))
        >>> tree.total()
        tensor(4., dtype=torch.float64)
    """

    def __init__(self, capacity: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.capacity, self.device, self.dtype = capacity, torch.device(device), dtype
        self._priority = torch.zeros(capacity, device=self.device, dtype=dtype)

    def update(self, index: Tensor, priority: Tensor) -> None:
        same_shape(index=index, priority=priority)
        outside = (index < 0) | (index >= self.capacity)
        if outside.any():
            raise IndexError(f"index {index[outside][0].item()} is outside [0, {self.capacity})")
        wrong = ~(priority.isfinite() & (priority >= 0))
        if wrong.any():
            raise ValueError(f"a priority is finite and not negative, got {priority[wrong][0].item()}")
        for i, p in zip(index.tolist(), priority, strict=True):
            self._priority[i] = p

    def sample(
        self, n: int, *, generator: torch.Generator | None = None, stratified: bool = False
    ) -> tuple[Tensor, Tensor]:
        cumulated = self._priority.double().cumsum(0)
        if cumulated[-1] == 0:
            raise ValueError("nothing can be drawn: all priorities are zero")
        u = torch.rand(n, generator=generator, device=self.device, dtype=torch.float64)
        if stratified:
            u = (u + torch.arange(n, device=self.device)) / n
        # The first leaf whose cumulated priority exceeds the mark: one with priority above zero.
        last = self._priority.nonzero()[-1]
        index = torch.searchsorted(cumulated, u * cumulated[-1], right=True).minimum(last)
        return index, self.get(index)

    def get(self, index: Tensor) -> Tensor:
        return self._priority[index]

    def total(self) -> Tensor:
        return self._priority.double().sum()

    def min(self) -> Tensor:
        above = torch.where(self._priority > 0, self._priority, torch.inf)
        return above.min()

    def max(self) -> Tensor:
        return self._priority.max()


class ToyRecurrentBackend:
    """The reference recurrence as a back end.

    Args:
        name: that it answers to.
    """

    def __init__(self, name: str = "toy") -> None:
        self.name = name

    def __call__(
        self,
        module: nn.RNNBase,
        inputs: Tensor,
        state: tuple[Tensor, ...],
        is_init: Tensor,
        reset_state: tuple[Tensor, ...] | None = None,
        options: RecurrentOptions = RecurrentOptions(),  # noqa: B008  frozen
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        if options != RecurrentOptions(recompute=options.recompute):  # it keeps nothing that could be recomputed
            raise BackendError(f"{self.name} computes in the type of its inputs; it was asked for {options}")
        return recurrent_reference(module, inputs, state, is_init, reset_state)


class ToyRowGather:
    """Copies of rows, by stacking them.

    Example:
        >>> ToyRowGather([torch.arange(4)]).rows(4, torch.tensor([2, 0]))
        [tensor([2, 0])]
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors

    def rows(self, written: int, index: Tensor) -> list[Tensor]:
        return self.runs(written, index, 1)

    def runs(self, written: int, begin: Tensor, steps: int) -> list[Tensor]:
        first: list[int] = begin.tolist()
        for row in first:
            if row < 0 or row + steps > written:
                raise IndexError(f"index {row} is outside [0, {written - steps + 1})")
        return [
            torch.cat([tensor[row : row + steps] for row in first]) if first else tensor[:0].clone()
            for tensor in self._tensors
        ]


def toy_linear_recurrence(d: Tensor, c: Tensor, time_dim: int) -> Tensor:
    """``x_t = d_t + c_t * x_{t+1}``, one step after the other.

    Args:
        d: what each step adds.
        c: weight of the step that follows; same shape.
        time_dim: where time is.

    Example:
        >>> toy_linear_recurrence(torch.ones(3), torch.full((3,), 0.5), 0)
        tensor([1.7500, 1.5000, 1.0000])
    """
    same_shape(d=d, c=c)
    adds, weights = d.movedim(time_dim, 0), c.movedim(time_dim, 0)
    rows = list(adds.unbind(0))
    for t in range(len(rows) - 2, -1, -1):
        rows[t] = adds[t] + weights[t] * rows[t + 1]  # out of place: the gradient needs the old value
    return torch.stack(rows).movedim(0, time_dim)
