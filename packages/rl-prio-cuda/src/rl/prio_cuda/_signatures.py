"""Signatures of the C functions of the library."""

from __future__ import annotations

from ctypes import CDLL, c_char_p, c_double, c_int, c_int64, c_void_p
from functools import cache

from rl.core.errors import BackendError
from rl.prio_cuda._library import require

__all__ = ["VERSION", "declare", "functions"]

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
    """The same library, its functions declared.

    Raises:
        BackendError: if it is of another version.
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
    """The library of this installation.

    Raises:
        RLError: if there is none.
    """
    return declare(require())
