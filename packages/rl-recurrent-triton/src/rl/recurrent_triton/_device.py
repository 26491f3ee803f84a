"""CUDA devices as the driver lists them, without importing torch."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rl.core.errors import BackendError
from rl.core.settings import settings

if TYPE_CHECKING:
    import torch


_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


def devices() -> list[tuple[str, tuple[int, int]]] | None:
    """Name and compute capability of each device that the driver shows to this process; None without a driver."""
    driver = _load()
    if driver is None or driver.cuInit(0):
        return None
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)):
        return None
    return [_device(driver, index) for index in range(count.value)]


def _load() -> ctypes.CDLL | None:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _device(driver: ctypes.CDLL, index: int) -> tuple[str, tuple[int, int]]:
    handle, text = ctypes.c_int(), ctypes.create_string_buffer(128)
    driver.cuDeviceGet(ctypes.byref(handle), index)
    driver.cuDeviceGetName(text, len(text), handle)
    major, minor = (_attribute(driver, which, handle) for which in (_MAJOR, _MINOR))
    return text.value.decode(errors="replace"), (major, minor)


def _attribute(driver: ctypes.CDLL, which: int, handle: ctypes.c_int) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), which, handle)
    return value.value


NEEDED = (8, 0)
"""Compute capability that Triton compiles for, and all that these kernels were compiled for."""


def has_triton() -> bool:
    """Whether Triton is installed; it is not imported."""
    return find_spec("triton") is not None


@cache
def is_interpreted() -> bool:
    """Whether Triton interprets (``TRITON_INTERPRET=1``), so that tensors on the CPU will do. Imports Triton."""
    if not has_triton():
        return False
    return bool(import_module("triton.knobs").runtime.interpret)


def why_not(device: torch.device | str | None = None) -> str:
    """Why the kernels do not run here, as a sentence that says what to do; empty if they do.

    Args:
        device: Device; any that the driver shows if None.

    Example:
        >>> from rl.recurrent_triton import why_not
        >>> "CUDA devices" in why_not("cpu")
        True
    """
    reason = _missing()
    if reason or device is None:
        return reason or _no_device()
    import torch

    return unfit(torch.device(device))


def _missing() -> str:
    """Return the reason why no device can run the kernels; None if one can."""
    if settings().native == "off":
        return "the kernels of rl-recurrent-triton are switched off with RL_NATIVE=off; unset it to use them"
    return "" if has_triton() else _no_triton()


def _no_triton() -> str:
    where = "" if sys.platform.startswith("linux") else f", which has no wheels for {sys.platform}: Linux has them"
    remedy = "" if where else ": `pip install triton`, of the version that fits torch"
    return f"rl-recurrent-triton needs Triton{where or ', which is not installed'}{remedy}"


def _no_device() -> str:
    found = devices()
    if found is None:
        return "rl-recurrent-triton finds no NVIDIA driver here: its kernels run on CUDA devices"
    if any(capability >= NEEDED for _, capability in found):
        return ""
    named = "; ".join(_describe(name, capability) for name, capability in found) or "the driver shows none"
    return f"rl-recurrent-triton needs a CUDA device of compute capability {_version(NEEDED)} or newer: {named}"


@cache
def unfit(device: torch.device) -> str:
    """Return the reason why a device cannot run the kernels, where Triton is installed; None if it can."""
    import torch

    if device.type == "cpu" and is_interpreted():
        return ""
    if device.type != "cuda":
        return (
            f"the kernels of rl-recurrent-triton run on CUDA devices, not on {device}: move module and data with"
            " .to('cuda'), or take the recurrent back end 'scan'"
        )
    if not torch.cuda.is_available():
        return f"torch sees no GPU here: {_blind()}"
    if torch.version.hip:
        return "the kernels of rl-recurrent-triton are for NVIDIA's devices, and this torch is built for AMD's"
    capability = torch.cuda.get_device_capability(device)
    if capability >= NEEDED:
        return ""
    named = _describe(torch.cuda.get_device_name(device), capability)
    return (
        f"the kernels of rl-recurrent-triton need compute capability {_version(NEEDED)} or newer, and {device} is"
        f" {named}: take the recurrent back end 'scan' or 'pad'"
    )


def _blind() -> str:
    import torch

    built = torch.backends.cuda.is_built()
    return "torch.cuda.is_available() is False" if built else "this torch is built without CUDA"


def _version(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _describe(name: str, capability: tuple[int, int]) -> str:
    return f"{name} ({_version(capability)})"


def notes() -> list[str]:
    """Return what is missing, for ``rl doctor``; else the version of Triton and the devices."""
    reason = why_not()
    if reason:
        return [f"{reason}{_also()}"]
    shown = "; ".join(_describe(name, capability) for name, capability in devices() or [])
    return [f"Triton {_triton_version()}; devices: {shown}"]


def _also() -> str:
    return f" (Triton {_triton_version()} is installed)" if has_triton() else ""


def said() -> str:
    """Which Triton computes, and how.

    Raises:
        BackendError: if there is none, or if it is switched off.
    """
    reason = _missing()
    if reason:
        raise BackendError(f"the recurrent back end 'triton': {reason}")
    return f"Triton {_triton_version()}{', interpreted' if is_interpreted() else ''}"


def _triton_version() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:  # built from source, or of another name
        return "of an unknown version"
