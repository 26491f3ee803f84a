"""Operations of the priority tree: argument checks, the call of C, and the same functions as operators of torch.

Eager calls run these functions directly, compiled graphs through ``torch.ops.rl_native``. The operators are registered
when this module is imported.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.library import Library, register_fake

from rl.core.errors import ArgumentError
from rl.native._library import why
from rl.native._priority_arguments import (
    BITS,
    buffer_size,
    check_apart_traced,
    check_beta,
    check_index,
    check_leaves,
    check_number,
    check_power,
    check_target,
    file_id,
    functions,
    leaves_at,
    map_file,
    open_tree,
    pack_draws,
    pack_errors,
    prepare_batch,
    prepare_uniforms,
    raise_status,
    save,
    zeros,
)
from rl.native._tracing import away

_LIBRARY = Library("rl_native", "FRAGMENT")
_LIBRARY.define("tree_set(Tensor(a!) buffer, Tensor index, Tensor priority) -> ()")
_LIBRARY.define(
    "tree_set_errors(Tensor(a!) buffer, Tensor index, Tensor error, float eps, float alpha, Tensor(b!)? raw,"
    " Tensor(c!)? largest, SymInt? rows) -> ()"
)
_LIBRARY.define(
    "tree_sample(Tensor buffer, SymInt n, Tensor seed, Tensor? u, bool stratified, float? beta, ScalarType dtype)"
    " -> (Tensor, Tensor)"
)
_LIBRARY.define("tree_get(Tensor buffer, Tensor index, ScalarType dtype) -> Tensor")
_LIBRARY.define("tree_rebuild(Tensor(a!) buffer, ScalarType dtype) -> ()")


def set_priorities(buffer: Tensor, capacity: int, dtype: torch.dtype, index: Tensor, priority: Tensor) -> None:
    """`NativePriorityTree.update` on the buffer of a tree."""
    index, priority = prepare_batch("update", index, priority, dtype)
    status = functions().rl_tree_set(
        buffer.data_ptr(), index.data_ptr(), priority.data_ptr(), index.numel(), 1 if priority.dim() else 0
    )
    if status:
        raise_status(status, capacity=capacity, index=index, value=priority)


def set_errors(
    buffer: Tensor,
    capacity: int,
    dtype: torch.dtype,
    index: Tensor,
    error: Tensor,
    eps: float,
    alpha: float,
    raw: Tensor | None,
    largest: Tensor | None,
    rows: int | None,
) -> None:
    """`NativePriorityTree.update_from_errors` on the buffer of a tree."""
    check_power(eps, alpha)
    index, error = prepare_batch("update_from_errors", index, error, dtype)
    limit = capacity if rows is None else min(check_number("update_from_errors: rows", rows), capacity)
    raw_at = largest_at = 0
    if raw is not None:
        check_target("raw", raw, dtype, (capacity,))
        raw_at = raw.data_ptr()
    if largest is not None:
        check_target("largest", largest, dtype, ())
        largest_at = largest.data_ptr()
    batch = buffer.data_ptr(), index.data_ptr(), error.data_ptr(), index.numel(), 1 if error.dim() else 0
    status = functions().rl_tree_set_errors(pack_errors(*batch, eps, alpha, limit, raw_at, largest_at))
    if status:
        raise_status(status, capacity=limit, index=index, value=error, power=(eps, alpha))


class _Scratch(threading.local):
    """Memory for a seed, one for each thread: allocating it costs as much as sampling 32 rows."""

    def __init__(self) -> None:
        self.seed = away(lambda: torch.empty((), dtype=torch.int64, device="cpu"))


_scratch = _Scratch()


def make_seed(generator: torch.Generator | None) -> Tensor:
    """Return a random seed ``[]`` for `sample`; valid until the next call in this thread."""
    if torch.compiler.is_compiling():
        return torch.randint(0, 2**62, (), generator=generator, device="cpu")
    return _scratch.seed.random_() if generator is None else _scratch.seed.random_(generator=generator)


def sample(
    buffer: Tensor,
    capacity: int,
    dtype: torch.dtype,
    n: int,
    seed: Tensor | None,
    u: Tensor | None,
    stratified: bool,  # noqa: FBT001  of the schema
    beta: float | None,
) -> tuple[Tensor, Tensor]:
    """`NativePriorityTree.sample`, or `sample_weighted` if `beta` is given, on the buffer of a tree."""
    n = check_number("sample: n", n)
    u = None if u is None else prepare_uniforms(u, n)
    index, found = buffer.new_empty(n, dtype=torch.int64), buffer.new_empty(n, dtype=dtype)
    found_at = found.data_ptr()
    status = functions().rl_tree_sample(
        pack_draws(
            buffer.data_ptr(),
            n,
            0 if seed is None else seed.data_ptr(),
            0 if u is None else u.data_ptr(),
            stratified,
            beta or 0.0,
            index.data_ptr(),
            found_at if beta is None else 0,
            0 if beta is None else found_at,
        )
    )
    if status:
        raise_status(status, capacity=capacity, value=u)
    return index, found


def get(buffer: Tensor, capacity: int, dtype: torch.dtype, index: Tensor) -> Tensor:
    """`NativePriorityTree.get` on the buffer of a tree."""
    check_index("get", index)
    index = index.contiguous()
    priority = torch.empty(index.shape, dtype=dtype, device="cpu")
    status = functions().rl_tree_get(buffer.data_ptr(), index.data_ptr(), priority.data_ptr(), index.numel())
    if status:
        raise_status(status, capacity=capacity, index=index)
    return priority


def rebuild(buffer: Tensor, capacity: int, dtype: torch.dtype) -> None:
    """`NativePriorityTree.rebuild` on the buffer of a tree."""
    status = functions().rl_tree_rebuild(buffer.data_ptr())
    if status:
        start = leaves_at(capacity, dtype)
        leaves = buffer[start : start + capacity * dtype.itemsize].view(dtype)
        raise_status(status, capacity=capacity, value=leaves)


def _open(buffer: Tensor, dtype: torch.dtype) -> tuple[Tensor, int, torch.dtype]:
    """Return the buffer, capacity and dtype of a tree, whose dtype must be as declared."""
    capacity, found = open_tree(buffer)
    if found is not dtype:
        raise ArgumentError(f"NativePriorityTree: the graph was compiled for {dtype}, but the tree holds {found}")
    return buffer, capacity, dtype


def _set_op(buffer: Tensor, index: Tensor, priority: Tensor) -> None:
    set_priorities(buffer, *open_tree(buffer), index, priority)


def _set_errors_op(
    buffer: Tensor,
    index: Tensor,
    error: Tensor,
    eps: float,
    alpha: float,
    raw: Tensor | None,
    largest: Tensor | None,
    rows: int | None,
) -> None:
    set_errors(buffer, *open_tree(buffer), index, error, eps, alpha, raw, largest, rows)


def _sample_op(
    buffer: Tensor,
    n: int,
    seed: Tensor,
    u: Tensor | None,
    stratified: bool,  # noqa: FBT001  of the schema
    beta: float | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    if seed.dtype is not torch.int64 or seed.shape != () or not seed.is_cpu:
        raise ArgumentError(
            f"NativePriorityTree.sample: the seed is {seed.dtype} {list(seed.shape)} on {seed.device}, expected"
            " torch.int64 [] on the CPU"
        )
    if beta is not None:
        check_beta(beta)
    return sample(*_open(buffer, dtype), n, seed, u, stratified, beta)


def _get_op(buffer: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    return get(*_open(buffer, dtype), index)


def _rebuild_op(buffer: Tensor, dtype: torch.dtype) -> None:
    rebuild(*_open(buffer, dtype))


def _fake_set(buffer: Tensor, index: Tensor, priority: Tensor) -> None:
    prepare_batch("update", index, priority, priority.dtype)
    check_apart_traced(buffer, index, priority)


def _fake_set_errors(buffer: Tensor, index: Tensor, error: Tensor, *others: object) -> None:
    eps, alpha, raw, largest = cast("tuple[float, float, Tensor | None, Tensor | None]", others[:4])
    check_power(eps, alpha)
    prepare_batch("update_from_errors", index, error, error.dtype)
    check_apart_traced(buffer, index, error, raw, largest)


def _fake_sample(buffer: Tensor, n: int, *others: object) -> tuple[Tensor, Tensor]:
    dtype = cast(torch.dtype, others[-1])
    return buffer.new_empty(n, dtype=torch.int64), buffer.new_empty(n, dtype=dtype)


def _fake_get(buffer: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    check_index("get", index)
    return buffer.new_empty(index.shape, dtype=dtype)


def _fake_rebuild(buffer: Tensor, dtype: torch.dtype) -> None:
    """No output, and nothing to check without memory."""


for _name, _function, _fake in (
    ("tree_set", _set_op, _fake_set),
    ("tree_set_errors", _set_errors_op, _fake_set_errors),
    ("tree_sample", _sample_op, _fake_sample),
    ("tree_get", _get_op, _fake_get),
    ("tree_rebuild", _rebuild_op, _fake_rebuild),
):
    _LIBRARY.impl(_name, _function, "CPU")
    register_fake(f"rl_native::{_name}", _fake, lib=_LIBRARY)


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
        capacity: Number of leaves, which are zero at first; at least 1.
        dtype: Dtype of the leaves, `torch.float32` or `torch.float64`.

    Raises:
        ArgumentError: If the capacity or the dtype is invalid.
        RLError: If rl-native has no compiled library.

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
        """Create a tree on existing memory, without a copy.

        Args:
            buffer: Attribute `buffer` of a tree, or a copy of it.
            rebuild: Whether to validate the leaves and recompute all nodes. If False, only the head of the buffer is
                validated; set it if the bytes may be damaged.

        Raises:
            CheckpointError: If it holds no tree.
            ArgumentError: If the tensor is not contiguous uint8 on the CPU, at a multiple of 64 bytes.
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
            IndexError: If an index is outside ``[0, capacity)``.
            ArgumentError: If a priority is negative, NaN or infinite in the tree's dtype, an index is not int64, or a
                tensor shares memory with the tree.
            ShapeError: If there is not one priority for each index.
        """
        if _compiling():
            _OPS.tree_set(self._buffer, index, priority.detach())
        else:
            set_priorities(self._buffer, self.capacity, self.dtype, index, priority)

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
            eps: Number of at least 0 that is added to the absolute error.
            alpha: Exponent, at least 0.
            raw: ``[capacity]`` of the tree's dtype; receives the errors at `index`.
            largest: ``[]`` of the tree's dtype; becomes the maximum of itself and the largest ``|error|``.
            rows: Exclusive upper bound of the indices; None for the capacity.

        Raises:
            IndexError: If an index is outside ``[0, rows)``.
            ArgumentError: If a priority would be infinite or NaN, `eps` or `alpha` is negative, `raw` or `largest` has
                another shape or dtype, or a written tensor shares memory with another one.
            ShapeError: If there is not one error for each index.

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
        set_errors(*tree, index, error, eps, alpha, raw, largest, rows)

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
            n: Number of samples, with replacement.
            generator: Random generator; None for the global one.
            stratified: Whether to take sample i from the i-th of n equal parts of the total, for less variance.
            u: Uniform numbers ``[n]`` in ``[0, 1)`` in place of a generator.

        Raises:
            ArgumentError: If the total is zero (also if `n` is 0), or a `u` is outside ``[0, 1)``.
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
        """Return indices, and weights, or priorities if `beta` is None."""
        if _compiling():
            return _OPS.tree_sample(self._buffer, n, make_seed(generator), u, bool(stratified), beta, self.dtype)
        seed = make_seed(generator) if u is None else None
        return sample(self._buffer, self.capacity, self.dtype, n, seed, u, bool(stratified), beta)

    def get(self, index: Tensor) -> Tensor:
        """Priorities ``[n]`` at ``[n]`` int64.

        Raises:
            IndexError: If an index is outside ``[0, capacity)``.
            ArgumentError: If the indices are not int64 on the CPU.
        """
        if _compiling():
            return _OPS.tree_get(self._buffer, index, self.dtype)
        return get(self._buffer, self.capacity, self.dtype, index)

    def _figure(self, place: int) -> Tensor:
        """Return a number of the head; under the compiler by a new view, as the compiler tracks views of the buffer."""
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
            ArgumentError: If a leaf is negative, infinite or NaN.
        """
        if _compiling():
            _OPS.tree_rebuild(self._buffer, self.dtype)
        else:
            rebuild(self._buffer, self.capacity, self.dtype)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the leaves, from which the nodes are recomputed."""
        return {"priority": self._leaves.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the leaves of another tree of this capacity and dtype.

        Raises:
            CheckpointError: If shape or dtype differ, or a leaf is not a valid priority. Nothing is written then.
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
        """Open a tree in a file: updates reach the file, and every process that maps it.

        Only the head of an existing file is validated; call `rebuild` before sampling if the file may be damaged.

        Args:
            path: File that `save` wrote, or the path of a new tree.
            capacity: Number of leaves of a new, empty tree, whose file must not exist; None opens an existing file.
            dtype: Dtype of a new tree.

        Raises:
            CheckpointError: If the file is missing, exists already, or holds no tree.
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
