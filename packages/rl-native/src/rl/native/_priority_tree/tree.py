"""Priority tree on the CPU: priorities by index in one buffer, sampled in proportion, in C."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.native._library import why
from rl.native._priority_tree import operations as ops
from rl.native._priority_tree.arguments import check_beta, check_leaves
from rl.native._priority_tree.calls import BITS, buffer_size, functions, leaves_at, open_tree
from rl.native._priority_tree.memory import ALIGN, file_id, map_file, save, zeros
from rl.native._tracing import away

__all__ = ["NativePriorityTree"]

_FLOAT64 = torch.float64
_compiling = torch.compiler.is_compiling
_OPS = torch.ops.rl_native


class NativePriorityTree:
    """Priorities by index; draws in proportion to them in O(log n), about 10 ns to 40 ns each.

    A `rl.core.interfaces.PriorityTree` on the CPU. Everything lies in one uint8 tensor, `buffer`, without pointers:
    it can be saved, mapped into memory, and shared between processes. Sums are float64, whatever the leaves are, and
    always recomputed from below, so that they do not drift. One thread or process may update at a time; until it is
    done, others draw rows that there are, but in no certain proportions and with weights of no certain size.

    Args:
        capacity: number of leaves; all are zero at first.
        dtype: of the leaves, `torch.float32` or `torch.float64`.

    Raises:
        SpecError: if there cannot be such a tree.
        RLError: if rl-native has no compiled library; the message says what to do.

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
        if buffer.dtype != torch.uint8 or buffer.device.type != "cpu" or not buffer.is_contiguous():
            raise SpecError(
                f"NativePriorityTree: a buffer is contiguous uint8 on the CPU; this one is {buffer.dtype} on"
                f" {buffer.device}"
            )
        if buffer.data_ptr() % ALIGN:
            raise SpecError("NativePriorityTree: a buffer begins at a multiple of 64 bytes; give a clone of this one")
        self.capacity, self.dtype = open_tree(buffer)
        self._buffer = buffer
        self._file: tuple[int, int] | None = None  # identity of the file that the buffer is mapped from
        start = leaves_at(self.capacity, self.dtype)
        self._leaves = buffer[start : start + self.capacity * self.dtype.itemsize].view(self.dtype)
        self._head = buffer[24:48].view(_FLOAT64)

    @property
    def buffer(self) -> Tensor:
        """All of the tree, uint8 ``[bytes]``; not a copy."""
        return self._buffer

    @property
    def why(self) -> str:
        """The instruction set in use, for ``rl doctor``."""
        return why()

    @classmethod
    def from_buffer(cls, buffer: Tensor, *, rebuild: bool = False) -> NativePriorityTree:
        """A tree that lives in `buffer`, without copying it.

        Args:
            buffer: the `buffer` of a tree, or a copy of it.
            rebuild: check the leaves, and recompute everything above them, as `rebuild` does. Without it what lies
                behind the head is believed: ask for it where the bytes may be damaged.

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
        """Set priorities ``[n]``, or one for all ``[]``, at ``[n]`` int64; of a repeated index the last one counts.

        Raises:
            IndexError: if an index is outside ``[0, capacity)``.
            SpecError: if a priority is negative, infinite in the tree's dtype or not a number, an index not int64, or
                either shares memory with the tree.
            ShapeError: if there is not one priority for each index. Nothing is written then.
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

        The power is exact to within 1e-9 for float32 and 1e-12 for float64.

        Args:
            index: ``[n]`` int64; of a repeated one the last counts.
            error: ``[n]``, of any sign, or one for all ``[]``.
            eps: at least 0.
            alpha: at least 0.
            raw: ``[capacity]``, of the tree's dtype; gets the errors as they are, at `index`.
            largest: ``[]``, of the tree's dtype; becomes the largest ``|error|`` where that is larger.
            rows: an index must be below it; the capacity if None.

        Raises:
            IndexError: if an index is outside ``[0, rows)``.
            SpecError: if a priority would be infinite or not a number, `eps` or `alpha` is negative, `raw` or
                `largest` is another tensor than that, or one that is written shares memory with another one.
            ShapeError: if there is not one error for each index. Nothing is written then, into none of the three.

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
        """Draw indices ``[n]`` in proportion to priority, and those priorities ``[n]``.

        Args:
            n: number of draws, with replacement; none from an empty tree either, so that 0 is refused there too.
            generator: of the randomness; the global one if None.
            stratified: draw the i-th from the i-th of n equal parts of the total, for less variance.
            u: the randomness itself, ``[n]`` in ``[0, 1)``, instead of a generator.

        Raises:
            SpecError: if the total is zero, or a `u` is outside ``[0, 1)``.
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
        """Draw indices ``[n]``, and their importance weights ``(priority / min) ** -beta``, ``[n]``, at most 1.

        The weights of Schaul et al. 2016, section 3.4, over the largest weight that any row could have: the number
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
        """A view of the head; under the compiler a new one, as it tracks views of the buffer."""
        head = self._buffer[24:48].view(_FLOAT64) if _compiling() else self._head
        return head[place]

    def total(self) -> Tensor:
        """Sum of all, float64 scalar."""
        return self._figure(0).clone()

    def min(self) -> Tensor:
        """Smallest priority above zero; infinity if there is none."""
        return self._figure(1).to(self.dtype, copy=True)

    def max(self) -> Tensor:
        """Largest priority; zero if empty."""
        return self._figure(2).to(self.dtype, copy=True)

    def rebuild(self) -> None:
        """Check all leaves, and recompute everything above them: after they were written by other means.

        Raises:
            SpecError: if a leaf is no priority.
        """
        if _compiling():
            _OPS.tree_rebuild(self._buffer, self.dtype)
        else:
            ops.rebuild(self._buffer, self.capacity, self.dtype)

    def state_dict(self) -> dict[str, Any]:
        """The leaves, a copy; what lies above them follows from them."""
        return {"priority": self._leaves.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the leaves of another tree of this capacity and dtype.

        Raises:
            CheckpointError: if they do not fit, or are no priorities. Nothing is written then.
        """
        leaves = check_leaves(state.get("priority"), self.capacity, self.dtype)
        self._leaves.copy_(leaves)
        self.rebuild()

    def save(self, path: str | Path) -> None:
        """Write the buffer to a file, byte for byte; an older file stays until the new one is complete.

        Nothing is left to do for the file that this tree is mapped from: it holds every update.
        """
        if self._file is None or self._file != file_id(Path(path)):
            save(self._buffer, Path(path))

    @classmethod
    def memory_map(
        cls, path: str | Path, capacity: int | None = None, *, dtype: torch.dtype = torch.float32
    ) -> NativePriorityTree:
        """A tree in a file: updates reach the file, and every process that maps it.

        What the file holds is believed; call `rebuild` before the first draw where it may be damaged.

        Args:
            path: what `save` wrote, or where a new tree is to be.
            capacity: make a new, empty tree of so many leaves; the file must not exist.
            dtype: of the new tree.

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
        """Move the buffer to shared memory: trees that other processes receive are then this one. Returns self."""
        self._attach(self._buffer.share_memory_())
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return NativePriorityTree.from_buffer, (self._buffer,)

    def __repr__(self) -> str:
        return f"NativePriorityTree(capacity={self.capacity}, dtype={self.dtype}, total={self.total().item():.6g})"
