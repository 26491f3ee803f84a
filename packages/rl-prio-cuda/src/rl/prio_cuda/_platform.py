"""Library, stream and device guard for each kind of device.

The only place that knows of CUDA in torch. Tests add an entry for ``"cpu"``, with the kernels compiled for the host.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from ctypes import CDLL
from dataclasses import dataclass

import torch

from rl.core.errors import BackendError, SpecError
from rl.prio_cuda._signatures import functions

__all__ = ["PLATFORMS", "Platform", "platform_of"]

_NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass(frozen=True)
class Platform:
    """How kernels are launched on devices of one kind.

    Args:
        functions: the library, its functions declared; raises if there is none.
        stream: the handle of the current stream of a device.
        guard: makes a device the current one, inside of a ``with``.
        ready: raises if there is no device of this kind.
    """

    functions: Callable[[], CDLL]
    stream: Callable[[torch.device], int]
    guard: Callable[[torch.device], AbstractContextManager[object]]
    ready: Callable[[], None] = lambda: None


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream


def _guard(device: torch.device) -> AbstractContextManager[object]:
    return _NOTHING if device.index == torch.cuda.current_device() else torch.cuda.device(device)


def _ready() -> None:
    if torch.cuda.is_available():
        return
    built = torch.backends.cuda.is_built()
    said = "torch.cuda.is_available() is False" if built else "this torch is built without CUDA"
    raise BackendError(
        f"a priority tree on a cuda device: torch sees no GPU here ({said}); `rl doctor` shows what is missing, and for"
        " a CPU there is rl-native's NativePriorityTree"
    )


PLATFORMS = {"cuda": Platform(functions, _stream, _guard, _ready)}


def platform_of(device: torch.device) -> Platform:
    """How kernels are launched on a device.

    Raises:
        SpecError: if they cannot be.
    """
    found = PLATFORMS.get(device.type)
    if found is None:
        raise SpecError(
            f"CudaPriorityTree lives on a CUDA device, not on {device}; for a CPU there are rl-native's"
            ' NativePriorityTree and the back end "torch" of rl-replay'
        )
    return found
