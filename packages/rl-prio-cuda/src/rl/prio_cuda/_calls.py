"""Calls of the compiled library through ctypes, on the current stream of the buffer's device.

The caller checks shapes, types and devices; invalid values inside of tensors are found on the device and recorded in
the workspace. Nothing here waits for the device.
"""

from __future__ import annotations

from ctypes import CDLL

import torch
from torch import Tensor

from rl.core.errors import BackendError
from rl.prio_cuda._platform import platform_of

__all__ = ["DTYPES", "get", "init", "ready", "rebuild", "sample", "update", "update_from_errors", "workspace"]

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
