"""`NativePriorityTree`: priorities by index in one buffer, drawn in proportion, in C."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from ctypes import byref, c_int64
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import CheckpointError, ShapeError, SpecError
from rl.native import _tree_ops as ops
from rl.native._library import why
from rl.native._tree_calls import BITS, buffer_size, functions, leaves_at, refuse

__all__ = ["NativePriorityTree"]

_INF = float("inf")
_INT64, _FLOAT64 = torch.int64, torch.float64
_DTYPES = {bits: dtype for dtype, bits in BITS.items()}
_compiling = torch.compiler.is_compiling


class _Scratch(threading.local):
    """Room for a seed, one for each thread: to allocate it costs as much as some draws."""

    def __init__(self) -> None:
        self.seed = torch.empty((), dtype=_INT64)
        self.at = self.seed.data_ptr()


_scratch = _Scratch()


class NativePriorityTree:
    """Priorities by index; draws in proportion to them in O(log n), about 10 ns to 40 ns each.

    A `rl.core.interfaces.PriorityTree` on the CPU. Everything lies in one uint8 tensor, `buffer`, without pointers:
    it can be saved, mapped into memory, and shared between processes. Sums are float64, whatever the leaves are, and
    always recomputed from below, so that they do not drift. One thread or process may update at a time.

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
        buffer = torch.zeros(buffer_size(capacity, dtype), dtype=torch.uint8)
        functions().rl_tree_init(buffer.data_ptr(), capacity, BITS[dtype])
        self._attach(buffer)

    def _attach(self, buffer: Tensor) -> None:
        """Use a buffer that holds a tree."""
        capacity, bits = c_int64(), c_int64()
        if buffer.dtype != torch.uint8 or buffer.device.type != "cpu" or not buffer.is_contiguous():
            raise SpecError(
                f"NativePriorityTree: a buffer is contiguous uint8 on the CPU; this one is {buffer.dtype} on"
                f" {buffer.device}"
            )
        if buffer.data_ptr() % 64:
            raise SpecError("NativePriorityTree: a buffer begins at a multiple of 64 bytes; give a clone of this one")
        if functions().rl_tree_open(buffer.data_ptr(), buffer.numel(), byref(capacity), byref(bits)):
            raise CheckpointError(f"NativePriorityTree: these {buffer.numel()} bytes hold no priority tree")
        self.capacity, self.dtype = capacity.value, _DTYPES[bits.value]
        self._buffer, self._at = buffer, buffer.data_ptr()
        start = leaves_at(self.capacity, self.dtype)
        self._leaves = buffer[start : start + self.capacity * (bits.value // 8)].view(self.dtype)
        self._head = buffer[24:48].view(_FLOAT64)
        library = functions()
        self._set, self._set_errors, self._draw = (
            library.rl_tree_set,
            library.rl_tree_set_errors,
            library.rl_tree_sample,
        )

    @property
    def buffer(self) -> Tensor:
        """All of the tree, uint8 ``[bytes]``; not a copy."""
        return self._buffer

    @property
    def why(self) -> str:
        """What computes, for ``rl doctor``."""
        return why()

    @classmethod
    def from_buffer(cls, buffer: Tensor, *, rebuild: bool = False) -> NativePriorityTree:
        """A tree that lives in `buffer`, without copying it.

        Args:
            buffer: the `buffer` of a tree, or a copy of it.
            rebuild: check the leaves, and recompute everything above them, as `rebuild` does.

        Raises:
            CheckpointError: if it holds no tree.
            SpecError: if the tensor is not contiguous uint8 on the CPU, at a multiple of 64 bytes.
        """
        tree = cls.__new__(cls)
        tree._attach(buffer)  # noqa: SLF001  its own class
        if rebuild:
            tree.rebuild()
        return tree

    def _batch(self, index: Tensor, value: Tensor, what: str) -> tuple[Tensor, Tensor]:
        """Both as C reads them."""
        if index.dtype is not _INT64:
            raise SpecError(f"NativePriorityTree.{what}: indices are torch.int64; these are {index.dtype}")
        if value.requires_grad:
            value = value.detach()
        if value.dtype is not self.dtype:
            value = value.to(self.dtype)
        if index.shape != value.shape and value.ndim:
            raise ShapeError(
                f"NativePriorityTree.{what}: {tuple(value.shape)} values for {tuple(index.shape)} indices; give one"
                " value for each index, or a single one without dimensions"
            )
        if not (index.is_cpu and value.is_cpu):
            raise SpecError(
                f"NativePriorityTree.{what}: this tree is on the CPU; the indices are on {index.device} and the values"
                f" on {value.device}"
            )
        return index.contiguous(), value.contiguous()

    def update(self, index: Tensor, priority: Tensor) -> None:
        """Set priorities ``[n]``, or one for all ``[]``, at ``[n]`` int64; of a repeated index the last one counts.

        Raises:
            IndexError: if an index is outside ``[0, capacity)``.
            SpecError: if a priority is negative, infinite in the tree's dtype or not a number, or an index not int64.
            ShapeError: if there is not one priority for each index. Nothing is written then.
        """
        index, priority = self._batch(index, priority, "update")
        if _compiling():
            ops.tree_set(self._buffer, index, priority)
            return
        status = self._set(self._at, index.data_ptr(), priority.data_ptr(), index.numel(), 1 if priority.ndim else 0)
        if status:
            refuse(status, capacity=self.capacity, index=index, value=priority)

    def update_from_errors(self, index: Tensor, td_error: Tensor, eps: float, alpha: float) -> None:
        """Set priorities to ``(|td_error| + eps) ** alpha`` [Schaul et al. 2016, eq. 1 and section 3.3].

        The power is exact to within 1e-9 for float32 and 1e-12 for float64.

        Args:
            index: ``[n]`` int64; of a repeated one the last counts.
            td_error: ``[n]``, of any sign.
            eps: at least 0.
            alpha: at least 0.

        Raises:
            IndexError: if an index is outside ``[0, capacity)``.
            SpecError: if a priority would be infinite or not a number, or `eps` or `alpha` is negative.
            ShapeError: if there is not one error for each index. Nothing is written then.
        """
        if not (0 <= eps < _INF and 0 <= alpha < _INF):
            raise SpecError(f"NativePriorityTree: eps and alpha are finite and at least 0; they are {eps} and {alpha}")
        index, td_error = self._batch(index, td_error, "update_from_errors")
        if not td_error.ndim:
            td_error = td_error.expand(index.shape).contiguous()
        if _compiling():
            ops.tree_set_errors(self._buffer, index, td_error, eps, alpha)
            return
        status = self._set_errors(self._at, index.data_ptr(), td_error.data_ptr(), index.numel(), eps, alpha)
        if status:
            refuse(status, capacity=self.capacity, index=index, value=td_error)

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
            n: number of draws, with replacement.
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
        if not 0 <= beta < _INF:
            raise SpecError(f"NativePriorityTree: beta is finite and at least 0; it is {beta}")
        return self._sample(n, generator, stratified, u, beta)

    def _sample(
        self,
        n: int,
        generator: torch.Generator | None,
        stratified: bool,  # noqa: FBT001  called twice, here
        u: Tensor | None,
        beta: float | None,
    ) -> tuple[Tensor, Tensor]:
        """Indices, and weights, or priorities if there is no beta."""
        if n < 0:
            raise SpecError(f"NativePriorityTree.sample: {n} draws are asked for; it is at least 0")
        if u is not None:
            if u.shape != (n,) or not u.is_cpu:
                raise ShapeError(
                    f"NativePriorityTree.sample: u is {tuple(u.shape)} on {u.device}; it is ({n},) on the CPU"
                )
            u = u.to(_FLOAT64).contiguous()
        if _compiling():
            seed = torch.randint(0, 2**62, (), generator=generator)
            return ops.tree_sample(self._buffer, n, seed, u, stratified, beta, self.dtype)
        index, found = torch.empty(n, dtype=_INT64), torch.empty(n, dtype=self.dtype)
        priority_at, weight_at = (found.data_ptr(), None) if beta is None else (None, found.data_ptr())
        seed_at = u_at = None
        if u is None:
            _scratch.seed.random_(generator=generator)
            seed_at = _scratch.at
        else:
            u_at = u.data_ptr()
        status = self._draw(
            self._at, n, seed_at, u_at, stratified, beta or 0.0, index.data_ptr(), priority_at, weight_at
        )
        if status:
            refuse(status, capacity=self.capacity, value=u)
        return index, found

    def get(self, index: Tensor) -> Tensor:
        """Priorities ``[n]`` at ``[n]`` int64.

        Raises:
            IndexError: if an index is outside ``[0, capacity)``.
        """
        if _compiling():
            return ops.tree_get(self._buffer, index, self.dtype)
        index = index.contiguous()
        priority = torch.empty(index.shape, dtype=self.dtype)
        status = functions().rl_tree_get(self._at, index.data_ptr(), priority.data_ptr(), index.numel())
        if status:
            refuse(status, capacity=self.capacity, index=index)
        return priority

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
        status = functions().rl_tree_rebuild(self._at)
        if status:
            refuse(status, capacity=self.capacity, value=self._leaves)

    def state_dict(self) -> dict[str, Any]:
        """The leaves, a copy; what lies above them follows from them."""
        return {"priority": self._leaves.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the leaves of another tree of this capacity and dtype.

        Raises:
            CheckpointError: if they do not fit, or are no priorities. Nothing is written then.
        """
        leaves = state.get("priority")
        if not isinstance(leaves, Tensor) or leaves.shape != (self.capacity,) or leaves.dtype != self.dtype:
            came = f"{tuple(leaves.shape)} of {leaves.dtype}" if isinstance(leaves, Tensor) else type(leaves).__name__
            raise CheckpointError(
                f"NativePriorityTree: the state holds {came} as priority; this tree takes ({self.capacity},) of"
                f" {self.dtype}"
            )
        if not bool((leaves >= 0).all() and leaves.isfinite().all()):
            raise CheckpointError("NativePriorityTree: the state holds priorities that are negative or not finite")
        self._leaves.copy_(leaves)
        self.rebuild()

    def save(self, path: str | Path) -> None:
        """Write the buffer to a file, byte for byte."""
        with Path(path).open("wb") as file:
            self._buffer.numpy().tofile(file)

    @classmethod
    def memory_map(
        cls, path: str | Path, capacity: int | None = None, *, dtype: torch.dtype = torch.float32
    ) -> NativePriorityTree:
        """A tree in a file: updates reach the file, and every process that maps it.

        Args:
            path: what `save` wrote, or where a new tree is to be.
            capacity: make a new, empty tree of so many leaves; the file must not exist.
            dtype: of the new tree.

        Raises:
            CheckpointError: if the file is missing, exists already, or holds no tree.
        """
        path = Path(path)
        if capacity is not None:
            if path.exists():
                raise CheckpointError(f"{path} exists; leave out the capacity to open it")
            size = buffer_size(capacity, dtype)
            with path.open("wb") as file:
                file.truncate(size)
        elif not path.is_file():
            raise CheckpointError(f"{path} is no file; give a capacity to make a new tree there")
        buffer = torch.from_file(str(path), shared=True, size=path.stat().st_size, dtype=torch.uint8)
        if capacity is not None:
            functions().rl_tree_init(buffer.data_ptr(), capacity, BITS[dtype])
        return cls.from_buffer(buffer)

    def share_memory(self) -> NativePriorityTree:
        """Move the buffer to shared memory: trees that other processes receive are then this one. Returns self."""
        self._attach(self._buffer.share_memory_())
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return NativePriorityTree.from_buffer, (self._buffer,)

    def __repr__(self) -> str:
        return f"NativePriorityTree(capacity={self.capacity}, dtype={self.dtype}, total={self.total().item():.6g})"
