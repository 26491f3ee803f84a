"""Where the bytes of a tree lie: in memory of the process, or in a file."""

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
"""A buffer begins at a multiple of so many bytes, a cache line."""

_HUGE = 2**21  # bytes of a large page on most processors


def zeros(size: int) -> Tensor:
    """A buffer of so many bytes, whose untouched pages take no memory, as those of `torch.zeros` would.

    Raises:
        SpecError: if there is not so much memory.

    Example:
        >>> buffer = zeros(1000)
        >>> buffer.shape, buffer.data_ptr() % ALIGN
        (torch.Size([1000]), 0)
    """
    try:
        room = _large(size + _HUGE) if size >= _HUGE else np.zeros(size + ALIGN, np.uint8)
    except (MemoryError, OSError, OverflowError) as error:
        raise SpecError(
            f"NativePriorityTree: so many leaves take {size / 1e12:.4g} TB, and this machine cannot give them; give it"
            " the number of rows that are stored"
        ) from error
    start = -room.ctypes.data % (_HUGE if size >= _HUGE else ALIGN)
    return torch.from_numpy(room[start : start + size])


def _large(size: int) -> Any:
    """Zeros in large pages, where the system has them: reads and writes at random seldom wait for a translation."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(size, np.uint8)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def save(buffer: Tensor, path: Path) -> None:
    """Write a buffer to a file; one that is there stays as it is until the new one is complete."""
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
    """A buffer in a file: a new one of `size` bytes, all zero, or one that is there.

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
    """What tells a file from all others, whatever its name is; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
