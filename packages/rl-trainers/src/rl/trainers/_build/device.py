"""Devices by name."""

from __future__ import annotations

import torch

from rl.core.errors import BackendError

__all__ = ["check_device", "storing_device"]


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
