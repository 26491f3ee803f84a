"""Memory of a tree: aligned zeros in the process, or a mapped file."""

from __future__ import annotations

import mmap
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl.core.errors import CheckpointError, SpecError

__all__ = ["ALIGN", "file_id", "map_file", "save", "zeros"]

ALIGN = 64
"""Alignment of a buffer in bytes: a cache line."""

_HUGE = 2**21  # bytes of a large page on most processors


def zeros(size: int) -> Tensor:
    """A zeroed buffer whose untouched pages take no memory.

    Raises:
        SpecError: if there is not enough memory.

    Example:
        >>> buffer = zeros(1000)
        >>> buffer.shape, buffer.data_ptr() % ALIGN
        (torch.Size([1000]), 0)
    """
    try:
        room = _large(size + _HUGE) if size >= _HUGE else np.zeros(size + ALIGN, np.uint8)
    except (MemoryError, OSError, OverflowError) as error:
        raise SpecError(
            f"NativePriorityTree: the leaves take {size / 1e12:.4g} TB, which this machine does not have; set the"
            " capacity to the number of stored rows"
        ) from error
    start = -room.ctypes.data % (_HUGE if size >= _HUGE else ALIGN)
    return torch.from_numpy(room[start : start + size])


def _large(size: int) -> Any:
    """Zeros in huge pages, where the system has them: random access needs fewer address translations."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(size, np.uint8)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def save(buffer: Tensor, path: Path) -> None:
    """Write a buffer to a file; an existing file is replaced when the new one is complete."""
    path = path.resolve()
    beside = path.with_name(f"{path.name}.{secrets.token_hex(6)}")
    try:
        with beside.open("xb") as file:
            buffer.numpy().tofile(file)
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def map_file(path: Path, size: int | None) -> Tensor:
    """A buffer in a file: a new one of `size` zero bytes, or the content of an existing file.

    Raises:
        CheckpointError: if the file is missing, or exists already.
    """
    if size is not None:
        try:
            with path.open("xb") as file:
                file.truncate(size)
        except FileExistsError as error:
            raise CheckpointError(f"{path} exists; leave out the capacity to open it") from error
    elif not path.is_file():
        raise CheckpointError(f"{path} is no file; give a capacity to make a new tree there")
    return torch.from_file(str(path), shared=True, size=path.stat().st_size, dtype=torch.uint8)


def file_id(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
