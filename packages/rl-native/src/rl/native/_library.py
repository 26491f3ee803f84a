"""Loader of the shared library, at first use; only `require` raises if it is absent."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from struct import Struct

from rl.core.backends import warn_slow
from rl.core.errors import RLError
from rl.core.settings import settings
from rl.native._build import COMMAND, LIBRARY, STAMP, record, stamp

ISAS = ("scalar", "AVX2", "AVX-512")
"""Instruction sets, numbered as in C."""

_SEGMENT = Struct("<I4xQ16xQ16x")
"""Kind, file offset and file size of a segment."""
_LOAD = 1


@cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    """Return the library, or the reason why there is none; independent of the settings."""
    if not LIBRARY.is_file():
        state = record().get("state") or "it was never built"
        return None, f"{LIBRARY} was built and removed since" if state == "ok" else state
    try:
        size, whole = LIBRARY.stat().st_size, _mapped(LIBRARY)
        if size < whole:  # the loader of Linux does not check, and the process would crash
            return None, f"{LIBRARY} is cut off: it has {size} of {whole} bytes"
        loaded = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        return None, f"it does not load: {error}"
    if not _holds(loaded, stamp()):  # its functions may take other arguments
        return (
            None,
            f"{LIBRARY} was compiled from other sources than the installed ones, for example those of another version",
        )
    return loaded, ""


def _mapped(path: Path) -> int:
    """Return the number of mapped bytes of a 64-bit little-endian ELF file; 0 for other formats.

    Example:
        >>> _mapped(Path(__file__))
        0
    """
    with path.open("rb") as file:
        head = file.read(64).ljust(64, b"\0")
        if head[:6] != b"\x7fELF\x02\x01":
            return 0
        start, size, count = Struct("<32xQ14xHH6x").unpack(head)
        file.seek(start)
        parts = file.read(size * count)
    if len(parts) < size * count:
        return start + size * count
    segments = (_SEGMENT.unpack_from(parts, size * i) for i in range(count)) if size >= _SEGMENT.size else ()
    return max((offset + length for kind, offset, length in segments if kind == _LOAD), default=0)


def _holds(loaded: ctypes.CDLL, expected: str) -> bool:
    try:
        symbol = (ctypes.c_char * len(expected)).in_dll(loaded, STAMP)
    except ValueError:  # it has none
        return False
    return symbol.raw == expected.encode()


def library() -> ctypes.CDLL | None:
    """Return the loaded library; None if it is absent or switched off with ``RL_NATIVE=off``.

    Raises:
        RLError: If ``RL_NATIVE`` is ``require`` and the library is absent.
    """
    mode = settings().native
    if mode == "off":
        return None
    loaded, _ = _load()
    if loaded is None and mode == "require":
        raise RLError(f"RL_NATIVE is require, but {_absent()}")
    return loaded


def require() -> ctypes.CDLL:
    """Return the loaded library.

    Raises:
        RLError: with what is missing and the command that builds it, if there is none.
    """
    loaded = library()
    if loaded is None:
        raise RLError(why_not())
    return loaded


def why_not() -> str:
    """Return the reason why `library` is None, with the remedy; empty if the library is loaded."""
    if settings().native == "off":
        return "the compiled library of rl-native is switched off with RL_NATIVE=off; unset it to use the library"
    return "" if _load()[0] is not None else _absent()


def _absent() -> str:
    return (
        f"rl-native has no compiled library: {_load()[1]}. Everything works without it, slower;"
        f" to build it, install a C compiler and run `{COMMAND}`"
    )


def warn_absent(what: str) -> None:
    """Warn once that plain PyTorch is used because there is no library; not if it is switched off.

    Args:
        what: Operation that runs in plain torch.
    """
    if settings().native != "off":
        warn_slow(f"{what} in plain torch: {_absent()}")


def isa() -> str:
    """Return the widest instruction set in use: ``AVX-512`` (recurrent loops only), ``AVX2`` or ``scalar``."""
    return ISAS[require().rl_isa()]


def use_isa(name: str | None) -> str:
    """Use another instruction set, if the processor has it, for tests and benchmarks.

    Args:
        name: Name out of `ISAS`; None for the widest.

    Returns:
        The instruction set in use: the requested one, or the widest that the processor has below it.
    """
    return ISAS[require().rl_isa_use(-1 if name is None else ISAS.index(name))]


def why() -> str:
    """Return the instruction set in use, for ``rl doctor``."""
    loaded = require()
    used, best = ISAS[loaded.rl_isa()], ISAS[loaded.rl_isa_best()]
    wider = ", ".join(ISAS[ISAS.index(best) + 1 :])
    chosen = f" (by choice; this processor has {best})" if used != best else ""
    return f"compiled C, {used} instructions{chosen}" + (f"; this processor has no {wider}" if wider else "")
