"""Calls of the compiled library through ctypes, on the current stream of the buffer's device.

The caller checks shapes, types and devices; invalid values inside of tensors are found on the device and recorded in
the workspace. Nothing here waits for the device.
"""

from __future__ import annotations

import struct
from ctypes import CDLL
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_fake

from rl.core.errors import ArgumentError, BackendError, CheckpointError
from rl.prio_cuda._arguments import check_apart, check_apart_traced
from rl.prio_cuda._library import platform_of

DTYPES = {32: torch.float32, 64: torch.float64}


def _raise(library: CDLL, status: int, what: str) -> None:
    """Raise what a CUDA error code means; nothing for 0."""
    if status:
        said = library.rl_prio_message(status).decode(errors="replace")
        raise BackendError(
            f"rl-prio-cuda: {what} failed with CUDA error {status}: {said}. `rl doctor` shows driver, devices and"
            " library"
        )


def _run(device: torch.device, name: str, *arguments: object) -> None:
    platform = platform_of(device)
    library = platform.functions()
    with platform.guard(device):
        status = getattr(library, name)(*arguments, platform.stream(device))
    if status:
        _raise(library, status, f"{name} on {device}")


def ready(device: torch.device) -> None:
    platform = platform_of(device)
    platform.ready()
    platform.functions()


def workspace(capacity: int, bits: int, device: torch.device) -> Tensor:
    """All kernels are loaded here too, so that the first launch of one may be inside of a graph capture."""
    platform = platform_of(device)
    library = platform.functions()
    with platform.guard(device):
        _raise(library, library.rl_prio_load(bits), f"loading its kernels on {device}")
    return torch.zeros(library.rl_prio_workspace_bytes(capacity), dtype=torch.uint8, device=device)


def init(buffer: Tensor, capacity: int, bits: int) -> None:
    _run(buffer.device, "rl_prio_init", buffer.data_ptr(), capacity, bits)


def update(buffer: Tensor, work: Tensor, capacity: int, bits: int, index: Tensor, priority: Tensor, rows: int) -> None:
    _run(
        buffer.device,
        "rl_prio_set",
        buffer.data_ptr(),
        work.data_ptr(),
        capacity,
        bits,
        index.data_ptr(),
        priority.data_ptr(),
        index.numel(),
        1 if priority.ndim else 0,
        rows,
    )


def update_from_errors(  # noqa: PLR0913, PLR0917  as in C
    buffer: Tensor,
    work: Tensor,
    capacity: int,
    bits: int,
    index: Tensor,
    error: Tensor,
    eps: float,
    alpha: float,
    raw: Tensor | None,
    largest: Tensor | None,
    rows: int,
) -> None:
    _run(
        buffer.device,
        "rl_prio_set_errors",
        buffer.data_ptr(),
        work.data_ptr(),
        capacity,
        bits,
        index.data_ptr(),
        error.data_ptr(),
        index.numel(),
        1 if error.ndim else 0,
        eps,
        alpha,
        None if raw is None else raw.data_ptr(),
        None if largest is None else largest.data_ptr(),
        rows,
    )


def sample(
    buffer: Tensor,
    work: Tensor,
    capacity: int,
    bits: int,
    u: Tensor,
    stratified: bool,  # noqa: FBT001  as in C
    beta: float | None,
) -> tuple[Tensor, Tensor]:
    index = torch.empty(u.shape, dtype=torch.int64, device=u.device)
    found = torch.empty(u.shape, dtype=DTYPES[bits], device=u.device)
    priority, weight = (found.data_ptr(), None) if beta is None else (None, found.data_ptr())
    _run(
        buffer.device,
        "rl_prio_sample",
        buffer.data_ptr(),
        work.data_ptr(),
        capacity,
        bits,
        u.data_ptr(),
        u.numel(),
        stratified,
        beta or 0.0,
        index.data_ptr(),
        priority,
        weight,
    )
    return index, found


def get(buffer: Tensor, work: Tensor, capacity: int, bits: int, index: Tensor) -> Tensor:
    priority = torch.empty(index.shape, dtype=DTYPES[bits], device=index.device)
    _run(
        buffer.device,
        "rl_prio_get",
        buffer.data_ptr(),
        work.data_ptr(),
        capacity,
        bits,
        index.data_ptr(),
        priority.data_ptr(),
        index.numel(),
    )
    return priority


def rebuild(buffer: Tensor, work: Tensor, capacity: int, bits: int) -> None:
    _run(buffer.device, "rl_prio_rebuild", buffer.data_ptr(), work.data_ptr(), capacity, bits)


_LIBRARY = Library("rl_prio_cuda", "FRAGMENT")
_TREE = "Tensor(b!) work, int capacity, int bits"
_LIBRARY.define(f"tree_set(Tensor(a!) buffer, {_TREE}, Tensor index, Tensor priority, int rows) -> ()")
_LIBRARY.define(
    f"tree_set_errors(Tensor(a!) buffer, {_TREE}, Tensor index, Tensor error, float eps, float alpha,"
    " Tensor(c!)? raw, Tensor(d!)? largest, int rows) -> ()"
)
_LIBRARY.define(f"tree_sample(Tensor buffer, {_TREE}, Tensor u, bool stratified, float? beta) -> (Tensor, Tensor)")
_LIBRARY.define(f"tree_get(Tensor buffer, {_TREE}, Tensor index) -> Tensor")


def _set(buffer: Tensor, work: Tensor, capacity: int, bits: int, index: Tensor, priority: Tensor, rows: int) -> None:
    index, priority = index.contiguous(), priority.contiguous()
    check_apart("rl_prio_cuda::tree_set", buffer, index, priority)
    update(buffer, work, capacity, bits, index, priority, rows)


def _set_errors(  # noqa: PLR0913, PLR0917  of the schema
    buffer: Tensor,
    work: Tensor,
    capacity: int,
    bits: int,
    index: Tensor,
    error: Tensor,
    eps: float,
    alpha: float,
    raw: Tensor | None,
    largest: Tensor | None,
    rows: int,
) -> None:
    index, error = index.contiguous(), error.contiguous()
    check_apart("rl_prio_cuda::tree_set_errors", buffer, index, error, raw, largest)
    update_from_errors(buffer, work, capacity, bits, index, error, eps, alpha, raw, largest, rows)


def _sample(
    buffer: Tensor,
    work: Tensor,
    capacity: int,
    bits: int,
    u: Tensor,
    stratified: bool,  # noqa: FBT001  of the schema
    beta: float | None,
) -> tuple[Tensor, Tensor]:
    return sample(buffer, work, capacity, bits, u.contiguous(), stratified, beta)


def _get(buffer: Tensor, work: Tensor, capacity: int, bits: int, index: Tensor) -> Tensor:
    return get(buffer, work, capacity, bits, index.contiguous())


def _fake_sample(*arguments: Any) -> tuple[Tensor, Tensor]:
    _, _, _, bits, u, *_ = arguments
    return u.new_empty(u.shape, dtype=torch.int64), u.new_empty(u.shape, dtype=DTYPES[bits])


def _fake_get(*arguments: Any) -> Tensor:
    _, _, _, bits, index = arguments
    return index.new_empty(index.shape, dtype=DTYPES[bits])


def _fake_set(*arguments: Any) -> None:
    buffer, _, _, _, index, priority, _ = arguments
    check_apart_traced("rl_prio_cuda::tree_set", buffer, index, priority)


def _fake_set_errors(*arguments: Any) -> None:
    buffer, _, _, _, index, error, _, _, raw, largest, _ = arguments
    check_apart_traced("rl_prio_cuda::tree_set_errors", buffer, index, error, raw, largest)


def implement(library: Library, key: str) -> None:
    """Give the operators their functions for tensors of one kind of device.

    Args:
        library: Library of the namespace rl_prio_cuda, with which the functions are removed.
        key: ``"CUDA"``; tests take ``"CPU"`` too.
    """
    functions = {"tree_set": _set, "tree_set_errors": _set_errors, "tree_sample": _sample, "tree_get": _get}
    for name, function in functions.items():
        library.impl(name, function, key)


implement(_LIBRARY, "CUDA")
register_fake("rl_prio_cuda::tree_set", _fake_set, lib=_LIBRARY)
register_fake("rl_prio_cuda::tree_set_errors", _fake_set_errors, lib=_LIBRARY)
register_fake("rl_prio_cuda::tree_sample", _fake_sample, lib=_LIBRARY)
register_fake("rl_prio_cuda::tree_get", _fake_get, lib=_LIBRARY)

tree_set = torch.ops.rl_prio_cuda.tree_set.default
tree_set_errors = torch.ops.rl_prio_cuda.tree_set_errors.default
tree_sample = torch.ops.rl_prio_cuda.tree_sample.default
tree_get = torch.ops.rl_prio_cuda.tree_get.default


MAGIC = b"rltree1\0"
HEAD = 128
ERROR_WORDS = 3
"""int64 words at the start of every workspace: code, position in the batch, bits of the offending float64."""

_BLOCK, _FAN = 16, 8
_MOST = 2**46
_NEAR = 2**20  # bytes of a tree that a processor's cache holds
_HEAD = struct.Struct("<8sqq3d")  # magic, capacity, bits of a leaf, total, min, max


@dataclass(frozen=True)
class Layout:
    """A tree's layout, in bytes from the start of its buffer.

    Args:
        capacity: Number of leaves.
        bits: Size of a leaf, 32 or 64.
        at: Offset of each level, lowest first; the last one is the root.
        children: Number of blocks or nodes below each level.
        leaves: Offset of the leaves.
        size: Size of the entire buffer.
    """

    capacity: int
    bits: int
    at: tuple[int, ...]
    children: tuple[int, ...]
    leaves: int
    size: int

    def reach(self, n: int) -> int:
        """Children that a level has at most if a batch of `n` makes all of them again, as in ``rl_whole``."""
        return 2 * n if self.size <= _NEAR else n

    @property
    def padded(self) -> int:
        """Number of leaves for which there is room."""
        return (self.size - self.leaves) // (self.bits // 8)


@cache
def layout(capacity: int, bits: int) -> Layout:
    """Return the layout of a tree.

    Raises:
        ArgumentError: If there cannot be such a tree.

    Example:
        >>> layout(1000, 32).size
        5376
    """
    if bits not in (32, 64):
        raise ArgumentError(f"priority tree: the dtype has {bits} bits; it is torch.float32 or torch.float64")
    if not 1 <= capacity <= _MOST:
        raise ArgumentError(f"priority tree: the capacity is {capacity}; it is at least 1 and at most 2^46")
    children: list[int] = []
    below = -(-capacity // _BLOCK)
    while not children or below > 1:
        children.append(below)
        below = -(-below // _FAN)
    size, at = HEAD, [0] * len(children)
    for level in reversed(range(len(children))):
        at[level] = size
        size += -(-children[level] // _FAN) * (128 if bits == 32 else 192)
    leaves = size
    size += -(-children[0] // _FAN) * _FAN * _BLOCK * (bits // 8)
    return Layout(capacity, bits, tuple(at), tuple(children), leaves, size)


def read_head(head: bytes, size: int) -> tuple[int, int]:
    """Capacity and bits of a leaf of the tree in a buffer.

    Args:
        head: First bytes of the buffer.
        size: Bytes of the entire buffer.

    Raises:
        CheckpointError: If it holds no tree.
    """
    if len(head) >= _HEAD.size:
        magic, capacity, bits, *_ = _HEAD.unpack_from(head)
        if magic == MAGIC and bits in (32, 64) and 1 <= capacity <= _MOST and layout(capacity, bits).size == size:
            return capacity, bits
    raise CheckpointError(f"priority tree: these {size} bytes hold no priority tree")
