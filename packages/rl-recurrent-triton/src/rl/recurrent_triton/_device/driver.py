"""CUDA devices as the driver lists them, without importing torch."""

from __future__ import annotations

import ctypes

__all__ = ["devices"]

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
