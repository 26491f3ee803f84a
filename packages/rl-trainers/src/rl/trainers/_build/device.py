"""Devices by name, and threads."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch

from rl.core.errors import BackendError

__all__ = ["check_device", "storing_device", "torch_threads"]


def check_device(device: str) -> None:
    """Raise unless tensors can be made on a device.

    Raises:
        BackendError: if not; names the available devices.

    Example:
        >>> check_device("cpu")
    """
    try:
        made = torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        there = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        reason = str(error).strip().splitlines()[0]
        raise BackendError(
            f"the device {device!r} cannot be used here ({reason}); set device to one of {', '.join(there)}"
        ) from error
    if made.is_meta:
        raise BackendError(f"the device {device!r} computes nothing; set device to cpu, for example")


def storing_device(device: str) -> str | None:
    """Where a collector shall put its batches: None, which copies nothing, where learning happens on the CPU."""
    return None if device == "cpu" else device


@contextmanager
def torch_threads(count: int) -> Generator[None]:
    """Let torch use `count` threads in the block, 0 for as many as before: sums depend on their number.

    Example:
        >>> with torch_threads(1):
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
