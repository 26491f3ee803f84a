"""Priority tree on a CUDA device: priorities by index, sampled in proportion."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, Self, final

import torch
from torch import Tensor

from rl.core.backends import report_missing
from rl.core.errors import ArgumentError, CheckpointError
from rl.core.settings import settings
from rl.prio_cuda import _calls as calls
from rl.prio_cuda import _calls as ops
from rl.prio_cuda._arguments import (
    as_integer,
    check_apart,
    check_finite,
    check_target,
    described,
    prepare_batch,
    prepare_index,
    prepare_uniforms,
)
from rl.prio_cuda._calls import ERROR_WORDS, HEAD, layout, read_head
from rl.prio_cuda._library import library, why, why_not

INDEX, PRIORITY, EMPTY, OVERFLOW, UNIFORM, DAMAGED = 1, 2, 3, 4, 5, 6


def raise_recorded(code: int, place: int, bits: int, *, capacity: int) -> NoReturn:
    """Raise the error that a kernel recorded.

    Args:
        code: Error code of the first rejected call.
        place: Position in its batch.
        bits: Rejected value, as the bits of a float64.
        capacity: Capacity of the tree.

    Raises:
        IndexError: For an index.
        ArgumentError: For a priority, a `u`, or a total that nothing can be sampled from.
        CheckpointError: If the buffer is damaged.
    """
    value = struct.unpack("<d", struct.pack("<q", bits))[0]
    where = f" (the one at position {place} of its batch)"
    if code == INDEX:
        raise IndexError(
            f"priority tree: index {value:.0f} is outside of the rows that may be used, of [0, {capacity}) at"
            f" most{where}; that call wrote nothing"
        )
    if code == PRIORITY:
        raise ArgumentError(
            f"priority tree: {value:g} is rejected{where}; it must be at least 0, and finite in the tree's dtype, one"
            " that an error makes too. That call wrote nothing"
        )
    if code == EMPTY:
        raise ArgumentError("priority tree: nothing can be sampled, all priorities are zero; update some first")
    if code == OVERFLOW:
        raise ArgumentError("priority tree: the sum of the priorities is infinite; scale them down")
    if code == UNIFORM:
        raise ArgumentError(f"priority tree: a u of {value:g} is outside [0, 1){where}")
    raise CheckpointError(f"priority tree: the buffer holds no tree, or was damaged (code {code}, position {place})")


_BITS = {dtype: bits for bits, dtype in calls.DTYPES.items()}
_compiling = torch.compiler.is_compiling


@final
class CudaPriorityTree:
    """Priorities by index on a CUDA device; a `rl.core.interfaces.PriorityTree`.

    Everything is ordered on the current stream of the device. No call waits for the device, so what is wrong inside
    of tensors cannot raise at once: a rejected batch writes nothing, and `check` raises it. With the same tensors every
    call is repeatable, and can be captured in a CUDA graph; ``torch.compile(fullgraph=True)`` keeps all calls.

    The tree is one buffer with the bytes of rl-native's: ``CudaPriorityTree.from_buffer(native.buffer.cuda())``.
    Sums are float64, whatever the leaves are, and always recomputed from below, so that they do not drift.

    Args:
        capacity: Number of leaves; all are zero at first.
        dtype: Dtype of the leaves, `torch.float32` or `torch.float64`.
        device: A CUDA device.
        buffer: Memory of a tree of this capacity and dtype; new and empty if None.

    Raises:
        ArgumentError: If there cannot be such a tree, or the device is no CUDA device.
        RLError: If there is no compiled library, or torch sees no GPU; the message says what to do.

    Example:
        >>> if torch.cuda.is_available():
        ...     tree = CudaPriorityTree(4)
        ...     tree.update(torch.tensor([0, 2], device="cuda"), torch.tensor([3.0, 1.0], device="cuda"))
        ...     assert (tree.total().item(), tree.min().item(), tree.max().item()) == (4.0, 1.0, 3.0)
        ...     index, priority = tree.sample(2, u=torch.tensor([0.0, 0.75], device="cuda"))
        ...     assert index.tolist() == [0, 2]
        ...     tree.check()  # raises what was rejected, here nothing
    """

    name = "cuda"

    def __init__(
        self,
        capacity: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cuda",
        buffer: Tensor | None = None,
    ) -> None:
        if dtype not in _BITS:
            raise ArgumentError(f"{type(self).__name__}: the dtype is {dtype}; it is torch.float32 or torch.float64")
        asked, capacity = capacity, as_integer(capacity)
        if capacity < 1:
            raise ArgumentError(
                f"{type(self).__name__}: the capacity is {asked!r}; it must be an integer of at least 1"
            )
        plan = layout(capacity, _BITS[dtype])
        if buffer is None:
            calls.ready(torch.device(device))
            buffer = torch.zeros(plan.size, dtype=torch.uint8, device=device)
            calls.init(buffer, capacity, plan.bits)
        self._attach(buffer, capacity, plan.bits)

    def _attach(self, buffer: Tensor, capacity: int | None, bits: int | None) -> None:
        """Use a buffer that holds a tree, of this capacity and type if they are known."""
        owner = type(self).__name__
        if not isinstance(buffer, Tensor) or buffer.dtype != torch.uint8 or buffer.ndim != 1:
            raise ArgumentError(f"{owner}: a buffer is uint8 [bytes]; this one is {described(buffer)}")
        if not buffer.is_contiguous():
            raise ArgumentError(f"{owner}: a buffer is contiguous; pass a clone of this one")
        if buffer.data_ptr() % 64:
            raise ArgumentError(f"{owner}: a buffer begins at a multiple of 64 bytes; pass a clone of this one")
        head = bytes(buffer[:HEAD].cpu().tolist())  # waits: once, when a tree is created
        found = read_head(head, buffer.numel())
        if capacity is not None and found != (capacity, bits):
            raise CheckpointError(
                f"{owner}: the buffer holds {found[0]} leaves of {found[1]} bits; asked for were {capacity} of {bits}"
            )
        self.capacity, self._bits = found
        self.dtype, self.device = calls.DTYPES[self._bits], buffer.device
        self._buffer, self._work = buffer, calls.workspace(self.capacity, self._bits, buffer.device)
        start = layout(self.capacity, self._bits).leaves
        self._leaves = buffer[start : start + self.capacity * (self._bits // 8)].view(self.dtype)
        self._head = buffer[24:48].view(torch.float64)
        self._error = self._work[: 8 * ERROR_WORDS].view(torch.int64)

    @property
    def buffer(self) -> Tensor:
        """All of the tree, uint8 ``[bytes]``; not a copy. The bytes are those of rl-native's tree."""
        return self._buffer

    @classmethod
    def from_buffer(cls, buffer: Tensor, *, rebuild: bool = False) -> Self:
        """Create a tree that lives in `buffer`, without copying it.

        Args:
            buffer: Attribute `buffer` of a tree, of this class or of rl-native, on the device where the tree is to be.
            rebuild: Whether to check the leaves, and recompute everything above them, as `rebuild` does.

        Raises:
            CheckpointError: If it holds no tree.
            ArgumentError: If the tensor is not contiguous uint8 at a multiple of 64 bytes.
        """
        tree = cls.__new__(cls)
        tree._attach(buffer, None, None)  # noqa: SLF001  its own class
        if rebuild:
            tree.rebuild()
        return tree

    def update(self, index: Tensor, priority: Tensor) -> None:
        """Set priorities ``[n]``, or one for all ``[]``, at ``[n]`` int64; of a repeated index the last one counts.

        An index outside ``[0, capacity)``, or a priority that is negative, infinite or not a number, is found on the
        device: then the call writes nothing, and `check` raises it.

        Raises:
            ArgumentError: If an index is not int64, or one of the two is on another device or shares memory with the
                tree.
            ShapeError: If there is not one priority for each index. Nothing is written then.
        """
        owner = f"{type(self).__name__}.update"
        index, priority = prepare_batch(owner, index, priority, self.device, self.dtype)
        if _compiling():
            ops.tree_set(self._buffer, self._work, self.capacity, self._bits, index, priority, self.capacity)
        else:
            check_apart(owner, self._buffer, index, priority)
            calls.update(self._buffer, self._work, self.capacity, self._bits, index, priority, self.capacity)

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

        What is wrong inside of `index` and `error` is found on the device: then the call writes nothing, and `check`
        raises it.

        Args:
            index: ``[n]`` int64; of a repeated one the last counts.
            error: ``[n]``, or one for all ``[]``, of any sign.
            eps: Number of at least 0 that is added to the absolute error.
            alpha: Exponent, at least 0.
            raw: ``[capacity]``; gets the errors at `index`.
            largest: ``[]``; gets the largest size of an error, if that is larger.
            rows: Index is below it; the capacity if None.

        Raises:
            ArgumentError: If `eps` or `alpha` is negative or not finite, a tensor has another dtype or device, or what
                is written (the tree, `raw`, `largest`) shares memory with another tensor of the call.
            ShapeError: If there is not one error for each index, or `raw` or `largest` has another shape.
        """
        owner = f"{type(self).__name__}.update_from_errors"
        check_finite(owner, eps=eps, alpha=alpha)
        limit = self.capacity if rows is None else as_integer(rows)
        if not 0 <= limit <= self.capacity:
            raise ArgumentError(f"{owner}: rows is {rows}; it must be an integer from 0 to {self.capacity}")
        index, error = prepare_batch(owner, index, error, self.device, self.dtype)
        check_target(f"{owner}: raw", raw, (self.capacity,), self._leaves)
        check_target(f"{owner}: largest", largest, (), self._leaves)
        eps, alpha = float(eps), float(alpha)
        places = self._buffer, self._work, self.capacity, self._bits
        if _compiling():
            ops.tree_set_errors(*places, index, error, eps, alpha, raw, largest, limit)
        else:
            check_apart(owner, self._buffer, index, error, raw, largest)
            calls.update_from_errors(*places, index, error, eps, alpha, raw, largest, limit)

    def sample(
        self,
        n: int,
        *,
        generator: torch.Generator | None = None,
        stratified: bool = False,
        u: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Draw indices ``[n]`` in proportion to priority, and those priorities ``[n]``.

        Where the total is zero or infinite, indices and priorities are 0, and `check` raises it.

        Args:
            n: Number of draws, with replacement.
            generator: Source of randomness; the global one of the device if None. One of the CPU works too; its numbers
                are copied to the device, which may wait.
            stratified: Whether to draw the i-th from the i-th of n equal parts of the total, for less variance.
            u: Randomness itself, ``[n]`` in ``[0, 1)``, instead of a generator.

        Raises:
            ArgumentError: If `n` is negative.
            ShapeError: If `u` has another shape or device.
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
        check_finite(f"{type(self).__name__}.sample_weighted", beta=beta)
        return self._sample(n, generator, stratified, u, float(beta))

    def _sample(
        self,
        n: int,
        generator: torch.Generator | None,
        stratified: bool,  # noqa: FBT001  called twice, here
        u: Tensor | None,
        beta: float | None,
    ) -> tuple[Tensor, Tensor]:
        u, stratified = (
            prepare_uniforms(f"{type(self).__name__}.sample", n, u, generator, self.device),
            bool(stratified),
        )
        places = self._buffer, self._work, self.capacity, self._bits
        if _compiling():
            return ops.tree_sample(*places, u, stratified, beta)
        return calls.sample(*places, u, stratified, beta)

    def get(self, index: Tensor) -> Tensor:
        """Priorities ``[n]`` at ``[n]`` int64; 0 at an index outside ``[0, capacity)``, which `check` then raises."""
        index = prepare_index(f"{type(self).__name__}.get", index, self.device)
        places = self._buffer, self._work, self.capacity, self._bits
        return ops.tree_get(*places, index) if _compiling() else calls.get(*places, index)

    def _figure(self, place: int) -> Tensor:
        """Return a view of the head; under the compiler a new one, as it tracks views of the buffer."""
        head = self._buffer[24:48].view(torch.float64) if _compiling() else self._head
        return head[place]

    def total(self) -> Tensor:
        """Sum of all, float64 scalar on the device."""
        return self._figure(0).clone()

    def min(self) -> Tensor:
        """Smallest priority above zero; infinity if there is none."""
        return self._figure(1).to(self.dtype, copy=True)

    def max(self) -> Tensor:
        """Largest priority; zero if empty."""
        return self._figure(2).to(self.dtype, copy=True)

    def check(self) -> None:
        """Wait for the device, and raise what it rejected first since the last time.

        Call it where the program waits anyway, for instance where it logs. Not while a graph is captured.

        Raises:
            IndexError: an index was outside of the rows that may be used.
            ArgumentError: a priority or an error was rejected, or a `u`; or nothing could be drawn.
            CheckpointError: a rebuilt buffer is damaged.
        """
        code, place, bits = self._error.tolist()
        if code:
            self._error.zero_()
            raise_recorded(code, place, bits, capacity=self.capacity)

    def rebuild(self) -> None:
        """Check all leaves, and recompute everything above them: after they were written by other means.

        Where a leaf is no priority nothing is recomputed, and `check` raises it.
        """
        calls.rebuild(self._buffer, self._work, self.capacity, self._bits)

    def state_dict(self) -> dict[str, Any]:
        """Return the leaves, a copy; what lies above them follows from them."""
        return {"priority": self._leaves.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the leaves of another tree of this capacity and dtype, on any device. Waits for the device.

        Raises:
            CheckpointError: If they do not fit, or are no priorities. Nothing is written then.
        """
        leaves, owner = state.get("priority") if isinstance(state, Mapping) else state, type(self).__name__
        if not isinstance(leaves, Tensor) or leaves.shape != (self.capacity,) or leaves.dtype != self.dtype:
            came = f"{tuple(leaves.shape)} of {leaves.dtype}" if isinstance(leaves, Tensor) else type(leaves).__name__
            raise CheckpointError(
                f"{owner}: the state holds {came} as priority; this tree takes ({self.capacity},) of {self.dtype}"
            )
        if not bool((leaves >= 0).all() and leaves.isfinite().all()):
            raise CheckpointError(f"{owner}: the state holds priorities that are negative or not finite")
        self._leaves.copy_(leaves)
        self.rebuild()

    def save(self, path: str | Path) -> None:
        """Write the buffer to a file, byte for byte; rl-native opens it too."""
        with Path(path).open("wb") as file:
            self._buffer.cpu().numpy().tofile(file)

    @classmethod
    def load(cls, path: str | Path, *, device: torch.device | str = "cuda") -> Self:
        """Create a tree with the bytes of a file that `save` wrote, or that of rl-native's tree.

        Raises:
            CheckpointError: If the file is missing or holds no tree.
        """
        path = Path(path)
        if not path.is_file():
            raise CheckpointError(f"{path} is no file")
        size = path.stat().st_size
        with path.open("rb") as file:
            read_head(file.read(HEAD), size)
        return cls.from_buffer(torch.from_file(str(path), size=size, dtype=torch.uint8).to(device, copy=True))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self).from_buffer, (self._buffer,)  # a copy has an error word of its own

    def __repr__(self) -> str:
        return f"{type(self).__name__}(capacity={self.capacity}, dtype={self.dtype}, device={self.device})"

    @property
    def why(self) -> str:
        """What computes, for ``rl doctor``."""
        return why()


def tree_for(capacity: int, device: torch.device, dtype: torch.dtype) -> CudaPriorityTree | None:
    """Create a tree on a CUDA device; None, with a warning, if something is missing.

    There is no warning if torch sees no GPU, for another dtype, and with ``RL_NATIVE=off``.

    Raises:
        RLError: If ``RL_NATIVE`` is ``require`` and the library cannot be used, on this device or at all.
    """
    import torch

    if dtype not in (torch.float32, torch.float64) or not torch.cuda.is_available() or settings().native == "off":
        return None
    usable = library() is not None  # raises where it is required
    reason = why_not(_number(device))
    if usable and not reason:
        return CudaPriorityTree(capacity, dtype=dtype, device=device)
    report_missing(reason, "Plain torch is used instead, which is much slower")
    return None


def _number(device: torch.device) -> int:
    import torch

    index: Any = device.index  # torch declares an int, and returns None for "cuda"
    return torch.cuda.current_device() if index is None else index
