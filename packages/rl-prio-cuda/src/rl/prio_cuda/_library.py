"""Loader of the shared library, at first use; only `require` raises if it is absent."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from ctypes import CDLL, c_char_p, c_double, c_int, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from rl.core.errors import ArgumentError, BackendError, RLError
from rl.core.settings import settings
from rl.prio_cuda._build import COMMAND, LIBRARY, STAMP, record, stamp

if TYPE_CHECKING:
    import torch  # where it is used only: `rl doctor --quick` imports this module


@cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    """Return the library, or why there is none, whatever the settings and the driver say."""
    if not LIBRARY.is_file():
        return None, record().get("state") or "it was never built"
    try:
        loaded = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        return None, f"it does not load: {error}"
    if _stamp_of(loaded) != stamp():  # its functions may take other arguments, or its kernels do other things
        return None, f"{LIBRARY} was compiled from other sources, of another version or since changed"
    return loaded, ""


def _stamp_of(loaded: ctypes.CDLL) -> str:
    try:
        symbol = (ctypes.c_char * len(stamp())).in_dll(loaded, STAMP)
    except ValueError:  # it has none
        return ""
    return symbol.value.decode(errors="replace")


def library() -> ctypes.CDLL | None:
    """Return the loaded library; None if it is absent, the driver cannot run it, or ``RL_NATIVE=off`` switches it off.

    Raises:
        RLError: If ``RL_NATIVE`` is ``require`` and there is none.
    """
    mode = settings().native
    if mode == "off":
        return None
    reason = _missing()
    if reason and mode == "require":
        raise RLError(f"RL_NATIVE is require, but {reason}")
    return None if reason else _load()[0]


def require() -> ctypes.CDLL:
    """Return the loaded library.

    Raises:
        RLError: with what is missing and what to do, if there is none.
    """
    loaded = library()
    if loaded is None:
        raise RLError(why_not())
    return loaded


def why_not(index: int | None = None) -> str:
    """Why `library` is None, as a sentence that says what to do; empty if it is there.

    Args:
        index: Index of a CUDA device on which the library is to run, too.
    """
    if settings().native == "off":
        return "the compiled library of rl-prio-cuda is switched off with RL_NATIVE=off; unset it to use the library"
    return _missing() or ("" if index is None else _unfit(index))


def _missing() -> str:
    """Return the reason why no device can run the library, or None."""
    loaded, reason = _load()
    if loaded is None:
        return (
            f"rl-prio-cuda has no compiled library: {reason}. To build it, install the CUDA toolkit and run `{COMMAND}`"
        )
    driver, runtime = versions()
    if not driver:
        return (
            "rl-prio-cuda finds no NVIDIA driver here: trees on CUDA devices need a GPU and its driver. The library is"
            f" there, {_compiled(runtime)}"
        )
    # Drivers run what was built with another minor version of their own major version, and with any older one.
    if driver // 1000 < runtime // 1000:
        return (
            f"rl-prio-cuda was built with CUDA {_spoken(runtime)}, and the driver offers CUDA {_spoken(driver)}: update"
            f" the driver, or build with a toolkit of CUDA {driver // 1000}: `{COMMAND}`"
        )
    return ""


def _unfit(index: int) -> str:
    """Return the reason why a device cannot run the library, or None."""
    try:
        name, capability = device(index)
    except RLError as error:
        return str(error)
    built = record().get("architectures", [])
    if not built or serves(capability, built):
        return ""
    mine = f"{capability[0]}{capability[1]}"
    return (
        f"rl-prio-cuda was built for the architectures {' '.join(built)}, and CUDA device {index} ({name}) is of"
        f' {mine}; build for it: `RL_CUDA_ARCHS="{mine}" {COMMAND}`'
    )


def serves(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Return whether a library built for `architectures` runs on a device.

    Machine code runs where the major number is the same and the minor one not smaller. The last architecture is there
    as PTX too, which the driver compiles for what is newer.

    Example:
        >>> serves((8, 9), ["80", "90"]), serves((12, 1), ["80", "90"]), serves((7, 0), ["80", "90"])
        (True, True, False)
    """
    pairs = [divmod(int(each), 10) for each in architectures]
    return max(pairs) <= capability or any(major == capability[0] and minor <= capability[1] for major, minor in pairs)


def versions() -> tuple[int, int]:
    """Versions of CUDA: what the driver offers, and what the library was built with; 0 where there is none.

    Each is 1000 times the major number plus 10 times the minor one.
    """
    loaded, _ = _load()
    driver, runtime = ctypes.c_int(), ctypes.c_int()
    if loaded is not None:
        loaded.rl_prio_driver(ctypes.byref(driver), ctypes.byref(runtime))
    return driver.value, runtime.value


def device(index: int) -> tuple[str, tuple[int, int]]:
    """Return the name of a CUDA device, and its compute capability.

    Raises:
        RLError: If there is no such device, or no library.
    """
    loaded, reason = _load()
    if loaded is None:
        raise RLError(f"rl-prio-cuda has no compiled library: {reason}")
    major, minor, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    status = loaded.rl_prio_device(index, ctypes.byref(major), ctypes.byref(minor), name, ctypes.c_int64(len(name)))
    if status:
        loaded.rl_prio_message.restype = ctypes.c_char_p
        said = loaded.rl_prio_message(status)
        raise RLError(f"rl-prio-cuda cannot use CUDA device {index}: {said.decode()}")
    return name.value.decode(errors="replace"), (major.value, minor.value)


def devices() -> list[str]:
    """All CUDA devices, as ``"0: NAME (9.0)"``; for what the library was not built, it says so."""
    found: list[str] = []
    while True:
        try:
            name, (major, minor) = device(len(found))
        except RLError:
            return found
        unfit = ", not among the architectures of the library" if why_not(len(found)) else ""
        found.append(f"{len(found)}: {name} ({major}.{minor}{unfit})")


def why() -> str:
    """Describe the compiled library, the driver and the devices, for ``rl doctor``."""
    require()
    driver, runtime = versions()
    return f"{_compiled(runtime)}; the driver offers CUDA {_spoken(driver)}; {'; '.join(devices()) or 'no device'}"


def _compiled(runtime: int) -> str:
    built = record().get("architectures", [])
    return f"compiled CUDA {_spoken(runtime)}" + (f" for {' '.join(built)} and newer" if built else "")


def _spoken(version: int) -> str:
    """Return a version of CUDA, as people write it."""
    return f"{version // 1000}.{version % 1000 // 10}"


VERSION = 1
"""Of the C interface that this package calls."""

_TREE = [c_void_p, c_void_p, c_int64, c_int64]  # buffer, workspace, capacity, bits
_SIGNATURES = {
    "rl_prio_version": (c_int, []),
    "rl_prio_bytes": (c_int64, [c_int64, c_int64]),
    "rl_prio_leaves_at": (c_int64, [c_int64, c_int64]),
    "rl_prio_workspace_bytes": (c_int64, [c_int64]),
    "rl_prio_load": (c_int, [c_int64]),
    "rl_prio_init": (c_int, [c_void_p, c_int64, c_int64, c_void_p]),
    "rl_prio_set": (c_int, [*_TREE, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p]),
    "rl_prio_set_errors": (
        c_int,
        [*_TREE, c_void_p, c_void_p, c_int64, c_int64, c_double, c_double, c_void_p, c_void_p, c_int64, c_void_p],
    ),
    "rl_prio_sample": (
        c_int,
        [*_TREE, c_void_p, c_int64, c_int, c_double, c_void_p, c_void_p, c_void_p, c_void_p],
    ),
    "rl_prio_get": (c_int, [*_TREE, c_void_p, c_void_p, c_int64, c_void_p]),
    "rl_prio_rebuild": (c_int, [*_TREE, c_void_p]),
    "rl_prio_single": (c_int64, [c_int64]),
    "rl_prio_message": (c_char_p, [c_int]),
    "rl_prio_driver": (c_int, [c_void_p, c_void_p]),
    "rl_prio_device": (c_int, [c_int, c_void_p, c_void_p, c_char_p, c_int64]),
}


def declare(library: CDLL) -> CDLL:
    """Declare the functions of a library, and return it.

    Raises:
        BackendError: If it is of another version.
    """
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    version = library.rl_prio_version()
    if version != VERSION:
        raise BackendError(
            f"rl-prio-cuda: the library has interface {version}, this package calls interface {VERSION};"
            " reinstall rl-prio-cuda"
        )
    return library


@cache
def functions() -> CDLL:
    """Return the library of this installation.

    Raises:
        RLError: If there is none.
    """
    return declare(require())


_NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass(frozen=True)
class Platform:
    """How kernels are launched on devices of one kind.

    Args:
        functions: Library, its functions declared; raises if there is none.
        stream: Handle of the current stream of a device.
        guard: Context manager that makes a device the current one.
        ready: Function that raises if there is no device of this kind.
    """

    functions: Callable[[], CDLL]
    stream: Callable[[torch.device], int]
    guard: Callable[[torch.device], AbstractContextManager[object]]
    ready: Callable[[], None] = lambda: None


def _stream(device: torch.device) -> int:
    import torch

    return torch.cuda.current_stream(device).cuda_stream


def _guard(device: torch.device) -> AbstractContextManager[object]:
    import torch

    return _NOTHING if device.index == torch.cuda.current_device() else torch.cuda.device(device)


def _ready() -> None:
    import torch

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
        ArgumentError: If they cannot be.
    """
    found = PLATFORMS.get(device.type)
    if found is None:
        raise ArgumentError(
            f"CudaPriorityTree lives on a CUDA device, not on {device}; for a CPU there are rl-native's"
            ' NativePriorityTree and the back end "torch" of rl-replay'
        )
    return found
