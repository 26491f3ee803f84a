"""Functions of `csrc` that take tensors as they are, see `csrc/python.h`; a call of one costs a tenth of a microsecond.

Python's own ways to C, and to ask a tensor for what C needs, take several.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Any, TypeVar

from torch import Tensor

from rl.native._library import require
from rl.native._traced import LEVEL, WATCHED

__all__ = ["function", "why_slower"]

Answer = TypeVar("Answer")

_CAPSULE = b"dlpack_exchange_api"
_FUNCTIONS = (
    *("PyObject_Type", "PyObject_GetAttr", "Py_IncRef", "Py_DecRef", "PyFloat_AsDouble", "PyNumber_AsSsize_t"),
    *("PyLong_FromLongLong", "PyErr_Occurred", "PyErr_Clear", "PyObject_CallNoArgs", "PyObject_IsTrue"),
    "PyDict_GetItemWithError",
    "PyTuple_Pack",
    *("PyEval_SaveThread", "PyEval_RestoreThread"),
)
_METHOD = Struct("@PPiP")  # PyMethodDef
_NAME = "requires_grad"
_KEPT: list[Any] = []
"""What C holds addresses of."""


def _python(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """A function of Python's interface for C, declared for us alone: what others declare of it is not changed."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


@cache
def _found() -> dict[str, Callable[..., Any]]:
    """All functions by name; none if this Python or this PyTorch does not offer what they need."""
    capsule = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    python = getattr(ctypes, "pythonapi", None)
    if capsule is None or not all(hasattr(python, name) for name in _FUNCTIONS):
        return {}
    asked = ctypes.py_object, ctypes.c_char_p
    if not _python("PyCapsule_IsValid", ctypes.c_int, *asked)(capsule, _CAPSULE):
        return {}
    exchange = _python("PyCapsule_GetPointer", ctypes.c_void_p, *asked)(capsule, _CAPSULE)
    constants = (Tensor, _NAME, None, True, False, float, *WATCHED, *LEVEL)
    addresses = [ctypes.cast(getattr(python, name), ctypes.c_void_p).value for name in _FUNCTIONS]
    _KEPT.extend((capsule, constants))
    start = require().rl_python_open
    start.argtypes, start.restype = [ctypes.c_void_p], ctypes.c_void_p
    table = (exchange, *map(id, constants), *addresses)
    methods = start((ctypes.c_void_p * len(table))(*table))
    return dict(_made(methods)) if methods else {}


def _made(at: int) -> list[tuple[str, Callable[..., Any]]]:
    """A function of Python for each of an array of declarations."""
    make = _python("PyCFunction_NewEx", ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    made: list[tuple[str, Callable[..., Any]]] = []
    while _METHOD.unpack(ctypes.string_at(at, _METHOD.size))[0]:
        function = make(at, None, None)
        made.append((function.__name__, function))
        at += _METHOD.size
    return made


def function(name: str, unusual: Answer) -> Callable[..., Answer]:
    """A function of ``METHODS`` in `csrc/python.c`.

    Args:
        name: of the function.
        unusual: what it answers if an argument is not what it mostly is, and nothing was done. Where this Python or
            this PyTorch does not offer what the function needs, another one takes its place that always answers so.

    Raises:
        RLError: if there is no compiled library.
    """
    return _found().get(name, lambda *_: unusual)


def why_slower() -> str:
    """What to add to why somebody computes, for ``rl doctor``: empty where the functions are there.

    Raises:
        RLError: if there is no compiled library.
    """
    return "" if _found() else "; this PyTorch offers no table of DLPack functions, so that calls cost more"
