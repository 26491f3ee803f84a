"""Implementations that plugins offer through hooks."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from rl.core.recurrent import RecurrentOptions

__all__ = ["LinearRecurrence", "PriorityTree", "RecurrentBackend", "RowGather"]


class PriorityTree(Protocol):
    """Priorities by index, drawn in proportion.

    Raw values are what the sampler computed, ``(|td_error| + eps) ** alpha`` in prioritized replay.

    A tree may do more in one call. These methods are optional, and looked up by name:

    - ``update_from_errors(index, error, eps, alpha, *, raw=None, largest=None, rows=None)``: sets
      ``(|error| + eps) ** alpha`` at `index` ``[n]``; of a repeated index the last one counts. If `raw` ``[capacity]``
      is given, it gets ``raw[index] = error`` too; if `largest` ``[]`` is, it becomes the larger of itself and the
      largest ``|error|``. An index of `rows` or more is refused. `error`, `raw` and `largest` have the tree's dtype and
      device. Everything is checked before anything is written, into any of the three;
    - ``sample_weighted(n, beta, *, generator=None, stratified=False)``: indices ``[n]`` and their importance weights
      ``(priority / min) ** -beta`` ``[n]``;
    - ``check()``: for a tree whose device computes while the host goes on. It cannot raise at once: a batch that it
      refuses writes nothing, and leaves an error on the device; where nothing can be drawn, indices and weights are
      zeros. ``check()`` waits, and raises the first error since the last ``check()``. A tree without it raises at once.

    With all of these, prioritized replay reads no value of a tensor on the host.
    """

    capacity: int
    device: torch.device
    dtype: torch.dtype

    def update(self, index: Tensor, priority: Tensor) -> None:
        """Set priorities ``[n]`` at ``[n]`` int64; of a repeated index the last one counts.

        Raises:
            IndexError: if an index is outside ``[0, capacity)``.
            ValueError: if a priority is negative, infinite or not a number. Nothing is written then.
        """
        ...

    def sample(
        self, n: int, *, generator: torch.Generator | None = None, stratified: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Draw indices ``[n]`` in proportion to priority, and those priorities ``[n]``.

        Raises:
            ValueError: if the total is zero.
        """
        ...

    def get(self, index: Tensor) -> Tensor:
        """Priorities ``[n]``."""
        ...

    def total(self) -> Tensor:
        """Sum of all, float64 scalar."""
        ...

    def min(self) -> Tensor:
        """Smallest priority above zero; infinity if there is none."""
        ...

    def max(self) -> Tensor:
        """Largest priority; zero if empty."""
        ...


class LinearRecurrence(Protocol):
    """The reverse scan behind every return: ``x_t = d_t + c_t * x_{t+1}``, ``x_T = 0``; differentiable in both.

    A back end may compute whole returns in one pass over memory. These methods are optional, and looked up by name:

    - ``gae(gamma, lmbda, state_value, next_state_value, reward, done, terminated, time_dim)``: advantage and value
      target;
    - ``td_lambda(gamma, lmbda, next_state_value, reward, done, terminated, time_dim)``: the return; nothing is
      bootstrapped where `next_state_value` is None;
    - ``vtrace(gamma, lmbda, ratio, state_value, next_state_value, reward, done, terminated, time_dim, rho_bar=,
      c_bar=)``: advantage and value target, where `ratio` is the probability of an action now over that when it was
      taken.

    Arguments come as the user gave them, unchecked: coefficients are numbers or tensors, `terminated` may be None and
    stands for `done` then. A method that does not serve them (other types, shapes that differ, a gradient that it
    cannot give) returns None before it computes anything; the caller then checks them and composes the return from the
    recurrence. Results are the same either way. All take a keyword ``out``, given only if the caller wants the results
    there: tensors in the shape of the result, to be written and returned.

    While `torch.compile` traces, a back end is called only if it has an attribute ``traceable`` that is true: it
    consists of registered operators then, whole returns included.

    Example: A back end without returns of its own.
        >>> class Loop:
        ...     def __call__(self, d, c, time_dim):
        ...         x, found = 0 * d.select(time_dim, 0), []
        ...         for t in reversed(range(d.shape[time_dim])):
        ...             x = d.select(time_dim, t) + c.select(time_dim, t) * x
        ...             found.append(x)
        ...         return torch.stack(found[::-1], time_dim)
        >>> Loop()(torch.ones(1, 3), torch.full((1, 3), 0.5), 1)
        tensor([[1.7500, 1.5000, 1.0000]])
    """

    def __call__(self, d: Tensor, c: Tensor, time_dim: int) -> Tensor:
        """Same shape as `d`; `c` has that shape too."""
        ...


class RecurrentBackend(Protocol):
    """A recurrence over ``[B, T, ...]`` that resets inside the sequence."""

    name: str

    def __call__(
        self,
        module: torch.nn.RNNBase,
        inputs: Tensor,
        state: tuple[Tensor, ...],
        is_init: Tensor,
        reset_state: tuple[Tensor, ...] | None = None,
        options: RecurrentOptions = ...,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs ``[B, T, H]`` and the states ``[B, T, layers, H]`` after each step.

        Args:
            module: holds the weights under the names of `torch.nn.LSTM` or `torch.nn.GRU`, batch first; its ``mode``,
                ``"LSTM"`` or ``"GRU"``, says which, as it need not inherit from either.
            inputs: ``[B, T, I]``.
            state: the state before the first step, ``[B, layers, H]`` each (h, or h and c).
            is_init: bool ``[B, T]``; where true, the state before that step is `reset_state` there, also before the
                first step.
            reset_state: ``[B, T, layers, H]`` each, read where `is_init` is true, with gradient; zero if None.
            options: how to compute.

        Raises:
            BackendError: if it does not serve this module (bidirectional, a projection, ...) or these options. It
                never computes something else instead.
        """
        ...


class RowGather(Protocol):
    """Copies of stored rows: made for the tensors ``[capacity, ...]`` of a storage, all of them in one call.

    It keeps the tensors, not what they hold: rows are written, and memory may be moved, between calls.
    """

    def rows(self, written: int, index: Tensor) -> list[Tensor]:
        """Of each tensor's first `written` rows those under `index` int64 ``[n]``, as copies ``[n, ...]``.

        `index` may be a view, whose numbers lie apart.

        Raises:
            IndexError: if an index is outside of them. An accelerator may leave that to its device.
        """
        ...

    def runs(self, written: int, begin: Tensor, steps: int) -> list[Tensor]:
        """The `steps` rows from each of `begin` int64 ``[n]`` on, one run behind the other: ``[n * steps, ...]``.

        Raises:
            IndexError: if a run is outside of the first `written` rows. An accelerator may leave that to its device.
        """
        ...
