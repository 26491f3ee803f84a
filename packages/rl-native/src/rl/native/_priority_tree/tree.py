"""Priority tree in C, for the CPU."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl.native._library import why
from rl.native._priority_tree import operations as ops
from rl.native._priority_tree.arguments import check_beta, check_leaves
from rl.native._priority_tree.calls import BITS, buffer_size, functions, leaves_at, open_tree
from rl.native._priority_tree.memory import file_id, map_file, save, zeros
from rl.native._tracing import away

__all__ = ["NativePriorityTree"]

_FLOAT64 = torch.float64
_compiling = torch.compiler.is_compiling
_OPS = torch.ops.rl_native


class NativePriorityTree:
    """Priority tree on the CPU, in C: a `rl.core.interfaces.PriorityTree` that samples in O(log n).

    The tree is one uint8 tensor, `buffer`, without pointers: it can be saved, memory-mapped, and shared between
    processes. Sums are float64 and always recomputed from the children, so that they do not drift.

    One thread or process may update at a time. Samples that other threads take during an update are valid indices, but
    their proportions and weights are not defined.

    Args:
        capacity: number of leaves, which are zero at first; at least 1.
        dtype: dtype of the leaves, `torch.float32` or `torch.float64`.

    Raises:
        SpecError: if the capacity or the dtype is invalid.
        RLError: if rl-native has no compiled library.

    Example:
        >>> tree = NativePriorityTree(4)
        >>> tree.update(torch.tensor([0, 2]), torch.tensor([3.0, 1.0]))
        >>> tree.total().item(), tree.min().item(), tree.max().item()
        (4.0, 1.0, 3.0)
        >>> index, priority = tree.sample(2, u=torch.tensor([0.0, 0.75]))
        >>> index.tolist(), priority.tolist()
        ([0, 2], [3.0, 1.0])
    """

    name = "native"
    device = torch.device("cpu")

    def __init__(self, capacity: int, *, dtype: torch.dtype = torch.float32) -> None:
        away(lambda: self._begin(capacity, dtype))

    def _begin(self, capacity: int, dtype: torch.dtype) -> None:
        buffer = zeros(buffer_size(capacity, dtype))
        functions().rl_tree_init(buffer.data_ptr(), operator.index(capacity), BITS[dtype])
        self._attach(buffer)

    def _attach(self, buffer: Tensor) -> None:
        """Use a buffer that holds a tree."""
        self.capacity, self.dtype = open_tree(buffer)
        self._buffer = buffer
        self._file: tuple[int, int] | None = None  # identity of the file that the buffer is mapped from
        start = leaves_at(self.capacity, self.dtype)
        self._leaves = buffer[start : start + self.capacity * self.dtype.itemsize].view(self.dtype)
        self._head = buffer[24:48].view(_FLOAT64)

    @property
    def buffer(self) -> Tensor:
        """The memory of the tree, uint8 ``[bytes]``; not a copy."""
        return self._buffer

    @property
    def why(self) -> str:
        """The instruction set in use, for ``rl doctor``."""
        return why()

    @classmethod
    def from_buffer(cls, buffer: Tensor, *, rebuild: bool = False) -> NativePriorityTree:
        """A tree on existing memory, without a copy.

        Args:
            buffer: the `buffer` of a tree, or a copy of it.
            rebuild: validate the leaves and recompute all nodes. If False, only the head of the buffer is validated;
                set it if the bytes may be damaged.

        Raises:
            CheckpointError: if it holds no tree.
            SpecError: if the tensor is not contiguous uint8 on the CPU, at a multiple of 64 bytes.
        """
        tree = cls.__new__(cls)
        tree._attach(buffer)  # noqa: SLF001  its own class
        if rebuild:
            tree.rebuild()
        return tree

    def update(self, index: Tensor, priority: Tensor) -> None:
        """Set priorities. If an error is raised, nothing is written.

        Args:
            index: ``[n]`` int64; the last value of a repeated index wins.
            priority: ``[n]``, or ``[]`` for all indices.

        Raises:
            IndexError: if an index is outside ``[0, capacity)``.
            SpecError: if a priority is negative, NaN or infinite in the tree's dtype, an index is not int64, or a
                tensor shares memory with the tree.
            ShapeError: if there is not one priority for each index.
        """
        if _compiling():
            _OPS.tree_set(self._buffer, index, priority.detach())
        else:
            ops.set_priorities(self._buffer, self.capacity, self.dtype, index, priority)

    def update_from_errors(
        self,
        index: Tensor,
        error: Tensor,
        eps: float,
        alpha: float,
        *,
        raw: Tensor | None = None,
        largest: Tensor | None = None,
        rows: int | None = None,
    ) -> None:
        """Set priorities to ``(|error| + eps) ** alpha`` [Schaul et al. 2016, eq. 1 and section 3.3].

        The relative error of the power is below 1e-9 for float32 and 1e-12 for float64. If an error is raised, nothing
        is written.

        Args:
            index: ``[n]`` int64; the last value of a repeated index wins.
            error: TD errors of any sign, ``[n]``, or ``[]`` for all indices.
            eps: at least 0.
            alpha: at least 0.
            raw: ``[capacity]`` of the tree's dtype; receives the errors at `index`.
            largest: ``[]`` of the tree's dtype; becomes the maximum of itself and the largest ``|error|``.
            rows: exclusive upper bound of the indices; None for the capacity.

        Raises:
            IndexError: if an index is outside ``[0, rows)``.
            SpecError: if a priority would be infinite or NaN, `eps` or `alpha` is negative, `raw` or `largest` has
                another shape or dtype, or a written tensor shares memory with another one.
            ShapeError: if there is not one error for each index.

        Example:
            >>> tree, raw, largest = NativePriorityTree(4), torch.zeros(4), torch.ones(())
            >>> tree.update_from_errors(
            ...     torch.tensor([0, 2]), torch.tensor([-4.0, 0.5]), 0.0, 0.5, raw=raw, largest=largest
            ... )
            >>> raw.tolist(), largest.item(), tree.max().item()
            ([-4.0, 0.0, 0.5, 0.0], 4.0, 2.0)
        """
        if _compiling():
            _OPS.tree_set_errors(self._buffer, index, error.detach(), eps, alpha, raw, largest, rows)
            return
        tree = self._buffer, self.capacity, self.dtype
        ops.set_errors(*tree, index, error, eps, alpha, raw, largest, rows)

    def sample(
        self,
        n: int,
        *,
        generator: torch.Generator | None = None,
        stratified: bool = False,
        u: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Sample indices ``[n]`` in proportion to priority, and their priorities ``[n]``.

        Args:
            n: number of samples, with replacement.
            generator: random generator; None for the global one.
            stratified: take sample i from the i-th of n equal parts of the total, for less variance.
            u: uniform numbers ``[n]`` in ``[0, 1)`` in place of a generator.

        Raises:
            SpecError: if the total is zero (also if `n` is 0), or a `u` is outside ``[0, 1)``.
        """
        return self._sample(n, generator, stratified, u, None)

    def sample_weighted(
        self,
        n: int,
        beta: float,
        *,
        generator: torch.Generator | None = None,
        stratified: bool = False,
        u: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Sample indices ``[n]``, and their importance weights ``(priority / min) ** -beta``, ``[n]``, at most 1.

        The weights of Schaul et al. 2016, section 3.4, divided by the largest weight that a row can have: the number
        of rows and the total cancel. Arguments as for `sample`.
        """
        check_beta(beta)
        return self._sample(n, generator, stratified, u, beta)

    def _sample(
        self,
        n: int,
        generator: torch.Generator | None,
        stratified: bool,  # noqa: FBT001  called twice, above
        u: Tensor | None,
        beta: float | None,
    ) -> tuple[Tensor, Tensor]:
        """Indices, and weights, or priorities if `beta` is None."""
        if _compiling():
            return _OPS.tree_sample(self._buffer, n, ops.make_seed(generator), u, bool(stratified), beta, self.dtype)
        seed = ops.make_seed(generator) if u is None else None
        return ops.sample(self._buffer, self.capacity, self.dtype, n, seed, u, bool(stratified), beta)

    def get(self, index: Tensor) -> Tensor:
        """Priorities ``[n]`` at ``[n]`` int64.

        Raises:
            IndexError: if an index is outside ``[0, capacity)``.
            SpecError: if the indices are not int64 on the CPU.
        """
        if _compiling():
            return _OPS.tree_get(self._buffer, index, self.dtype)
        return ops.get(self._buffer, self.capacity, self.dtype, index)

    def _figure(self, place: int) -> Tensor:
        """A number of the head; under the compiler by a new view, as the compiler tracks views of the buffer."""
        head = self._buffer[24:48].view(_FLOAT64) if _compiling() else self._head
        return head[place]

    def total(self) -> Tensor:
        """Sum of the priorities, float64 ``[]``."""
        return self._figure(0).clone()

    def min(self) -> Tensor:
        """Smallest priority above zero; infinity if there is none."""
        return self._figure(1).to(self.dtype, copy=True)

    def max(self) -> Tensor:
        """Largest priority; zero for an empty tree."""
        return self._figure(2).to(self.dtype, copy=True)

    def rebuild(self) -> None:
        """Validate all leaves and recompute all nodes, after the buffer was written by other means.

        Raises:
            SpecError: if a leaf is negative, infinite or NaN.
        """
        if _compiling():
            _OPS.tree_rebuild(self._buffer, self.dtype)
        else:
            ops.rebuild(self._buffer, self.capacity, self.dtype)

    def state_dict(self) -> dict[str, Any]:
        """A copy of the leaves, from which the nodes are recomputed."""
        return {"priority": self._leaves.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the leaves of another tree of this capacity and dtype.

        Raises:
            CheckpointError: if shape or dtype differ, or a leaf is not a valid priority. Nothing is written then.
        """
        leaves = check_leaves(state.get("priority"), self.capacity, self.dtype)
        self._leaves.copy_(leaves)
        self.rebuild()

    def save(self, path: str | Path) -> None:
        """Write the buffer to a file, byte for byte; an older file stays until the new one is complete.

        Saving to the file that this tree is mapped from does nothing: that file holds every update.
        """
        if self._file is None or self._file != file_id(Path(path)):
            save(self._buffer, Path(path))

    @classmethod
    def memory_map(
        cls, path: str | Path, capacity: int | None = None, *, dtype: torch.dtype = torch.float32
    ) -> NativePriorityTree:
        """A tree in a file: updates reach the file, and every process that maps it.

        Only the head of an existing file is validated; call `rebuild` before sampling if the file may be damaged.

        Args:
            path: a file that `save` wrote, or the path of a new tree.
            capacity: number of leaves of a new, empty tree, whose file must not exist; None opens an existing file.
            dtype: dtype of a new tree.

        Raises:
            CheckpointError: if the file is missing, exists already, or holds no tree.
        """
        path, size = Path(path), None if capacity is None else buffer_size(capacity, dtype)
        buffer = away(lambda: map_file(path, size))
        if capacity is not None:
            functions().rl_tree_init(buffer.data_ptr(), operator.index(capacity), BITS[dtype])
        tree = cls.from_buffer(buffer)
        tree._file = file_id(path)  # noqa: SLF001  its own class
        return tree

    def share_memory(self) -> NativePriorityTree:
        """Move the buffer to shared memory, so that processes that receive this tree share it. Returns self."""
        self._attach(self._buffer.share_memory_())
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return NativePriorityTree.from_buffer, (self._buffer,)

    def __repr__(self) -> str:
        return f"NativePriorityTree(capacity={self.capacity}, dtype={self.dtype}, total={self.total().item():.6g})"
