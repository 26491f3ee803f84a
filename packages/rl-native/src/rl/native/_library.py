"""The shared library: loaded at first use, once; nothing here raises because it is absent, except `require`."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from struct import Struct

from rl.core.backends import warn_slow
from rl.core.errors import RLError
from rl.core.settings import settings
from rl.native._build import COMMAND, LIBRARY, STAMP, record, stamp

__all__ = ["ISAS", "isa", "library", "require", "use_isa", "warn_absent", "why", "why_not"]

ISAS = ("scalar", "AVX2", "AVX-512")
"""Instruction sets by the number that C knows them by."""

_SEGMENT = Struct("<I4xQ16xQ16x")
"""Of a segment its kind, where in the file it begins, and how many bytes of the file it has."""
_LOAD = 1


@cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library, or why there is none, whatever the settings say."""
    if not LIBRARY.is_file():
        state = record().get("state") or "it was never built"
        return None, f"{LIBRARY} was built and is gone" if state == "ok" else state
    try:
        size, whole = LIBRARY.stat().st_size, _mapped(LIBRARY)
        if size < whole:  # the loader of Linux does not look, and ends the process
            return None, f"{LIBRARY} is cut off: it has {size} of {whole} bytes"
        loaded = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        return None, f"it does not load: {error}"
    if not _holds(loaded, stamp()):  # its functions may take other arguments
        return None, f"{LIBRARY} was compiled from other sources than those beside it, as those of another version are"
    return loaded, ""


def _mapped(path: Path) -> int:
    """How many bytes of a file in the ELF format, of 64 bits and little-endian, are loaded; 0 of others.

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
    """The loaded library; None if it is absent or switched off with ``RL_NATIVE=off``.

    Raises:
        RLError: if ``RL_NATIVE`` is ``require`` and the library is absent.
    """
    mode = settings().native
    if mode == "off":
        return None
    loaded, _ = _load()
    if loaded is None and mode == "require":
        raise RLError(f"RL_NATIVE is require, but {_absent()}")
    return loaded


def require() -> ctypes.CDLL:
    """The loaded library.

    Raises:
        RLError: with what is missing and the command that builds it, if there is none.
    """
    loaded = library()
    if loaded is None:
        raise RLError(why_not())
    return loaded


def why_not() -> str:
    """Why `library` is None, as a sentence that says what to do; empty if it is there."""
    if settings().native == "off":
        return "the compiled library of rl-native is switched off with RL_NATIVE=off; unset it to use the library"
    return "" if _load()[0] is not None else _absent()


def _absent() -> str:
    return (
        f"rl-native has no compiled library: {_load()[1]}. Everything works without it, slower;"
        f" to build it, install a C compiler and run `{COMMAND}`"
    )


def warn_absent(what: str) -> None:
    """Say, once, that something else computes because there is no library; not where it is switched off.

    Args:
        what: is done in plain torch then.
    """
    if settings().native != "off":
        warn_slow(f"{what} in plain torch: {_absent()}")


def isa() -> str:
    """The instruction set in use: ``AVX-512``, ``AVX2`` or ``scalar``."""
    return ISAS[require().rl_isa()]


def use_isa(name: str | None) -> str:
    """Use another instruction set, if the processor has it, for tests and benchmarks.

    Args:
        name: of `ISAS`; None for the widest.

    Returns:
        The one in use from now on: the widest that the processor has, if it lacks what was asked for.
    """
    return ISAS[require().rl_isa_use(-1 if name is None else ISAS.index(name))]


def why() -> str:
    """What is compiled, for ``rl doctor``."""
    loaded = require()
    used, best = ISAS[loaded.rl_isa()], ISAS[loaded.rl_isa_best()]
    wider = ", ".join(ISAS[ISAS.index(best) + 1 :])
    chosen = f" (by choice; this processor has {best})" if used != best else ""
    return f"compiled C, {used} instructions{chosen}" + (f"; this processor has no {wider}" if wider else "")
