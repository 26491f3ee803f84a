"""What computes: the compiled library, or the Triton twin, behind the same functions on tensors.

The caller checks shapes, types and devices; what is wrong inside of tensors is found on the device, and left in the
workspace. Nothing here waits for the device.
"""

from __future__ import annotations

from ctypes import CDLL
from functools import cache
from typing import Protocol, final

import torch
from torch import Tensor

from rl.core.errors import BackendError
from rl.prio_cuda._platform import platform_of

__all__ = ["DTYPES", "Executor", "LibraryExecutor", "executor"]

DTYPES = {32: torch.float32, 64: torch.float64}


class Executor(Protocol):
    """The calls on a tree: its buffer and workspace, its capacity, and the bits of a leaf."""

    def ready(self, device: torch.device) -> None:
        """Raise if a tree cannot be on this device, before memory is asked for."""
        ...

    def workspace(self, capacity: int, bits: int, device: torch.device) -> Tensor:
        """A new workspace, uint8; three int64 words for an error come first, zero where there is none."""
        ...

    def init(self, buffer: Tensor, capacity: int, bits: int) -> None:
        """Make a buffer of zeros an empty tree."""
        ...

    def set(
        self, buffer: Tensor, work: Tensor, capacity: int, bits: int, index: Tensor, priority: Tensor, rows: int
    ) -> None:
        """Priorities ``[n]``, or one for all ``[]``, at ``[n]``, each below `rows`."""
        ...

    def set_errors(  # noqa: PLR0913, PLR0917  as in C
        self,
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
        """Priorities ``(|error| + eps) ** alpha``; the errors into `raw`, their largest size into `largest`."""
        ...

    def sample(
        self,
        buffer: Tensor,
        work: Tensor,
        capacity: int,
        bits: int,
        u: Tensor,
        stratified: bool,  # noqa: FBT001  as in C
        beta: float | None,
    ) -> tuple[Tensor, Tensor]:
        """Indices, and weights, or priorities if there is no beta."""
        ...

    def get(self, buffer: Tensor, work: Tensor, capacity: int, bits: int, index: Tensor) -> Tensor:
        """Priorities."""
        ...

    def rebuild(self, buffer: Tensor, work: Tensor, capacity: int, bits: int) -> None:
        """Check all leaves, then make everything above them again."""
        ...


def _raise(library: CDLL, status: int, what: str) -> None:
    """Raise what a CUDA error code means; nothing for 0."""
    if status:
        said = library.rl_prio_message(status).decode(errors="replace")
        raise BackendError(
            f"rl-prio-cuda: {what} failed with CUDA error {status}: {said}. `rl doctor` shows driver, devices and"
            " library"
        )


@final
class LibraryExecutor:
    """The compiled library, through ctypes, on the current stream of the buffer's device."""

    def _run(self, device: torch.device, name: str, *arguments: object) -> None:
        platform = platform_of(device)
        library = platform.functions()
        with platform.guard(device):
            status = getattr(library, name)(*arguments, platform.stream(device))
        if status:
            _raise(library, status, f"{name} on {device}")

    def ready(self, device: torch.device) -> None:
        platform = platform_of(device)
        platform.ready()
        platform.functions()

    def workspace(self, capacity: int, bits: int, device: torch.device) -> Tensor:
        """All kernels are loaded here too, so that the first launch of one may be inside of a graph capture."""
        platform = platform_of(device)
        library = platform.functions()
        with platform.guard(device):
            _raise(library, library.rl_prio_load(bits), f"loading its kernels on {device}")
        return torch.zeros(library.rl_prio_workspace_bytes(capacity), dtype=torch.uint8, device=device)

    def init(self, buffer: Tensor, capacity: int, bits: int) -> None:
        self._run(buffer.device, "rl_prio_init", buffer.data_ptr(), capacity, bits)

    def set(
        self, buffer: Tensor, work: Tensor, capacity: int, bits: int, index: Tensor, priority: Tensor, rows: int
    ) -> None:
        self._run(
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

    def set_errors(  # noqa: PLR0913, PLR0917  as in C
        self,
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
        self._run(
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
        self,
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
        self._run(
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

    def get(self, buffer: Tensor, work: Tensor, capacity: int, bits: int, index: Tensor) -> Tensor:
        priority = torch.empty(index.shape, dtype=DTYPES[bits], device=index.device)
        self._run(
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

    def rebuild(self, buffer: Tensor, work: Tensor, capacity: int, bits: int) -> None:
        self._run(buffer.device, "rl_prio_rebuild", buffer.data_ptr(), work.data_ptr(), capacity, bits)


@cache
def executor(*, twin: bool) -> Executor:
    """The Triton twin, or the compiled library. What the library needs is looked for when it is called.

    Raises:
        BackendError: if Triton is not installed, and asked for.
    """
    if not twin:
        return LibraryExecutor()
    try:
        from rl.prio_cuda._triton import TritonExecutor
    except ModuleNotFoundError as error:
        raise BackendError(
            "TritonPriorityTree needs Triton, which is not installed: `pip install triton`, or take CudaPriorityTree"
        ) from error
    return TritonExecutor()
