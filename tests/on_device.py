"""`pytest --device cuda`: ordinary tests compute on another device.

What a test makes is made there: tensors, and objects of the library that the test constructs. What the library makes
while it runs is left to the library: a tensor that it forgets to place stays on the CPU, and the test fails as a user's
program would. Numbers drawn with a generator of the CPU are drawn there and moved.
"""

from __future__ import annotations

import inspect
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils._device import DeviceContext, _device_constructors

_TESTS, _LIBRARY, _OTHER = range(3)
_CONSTRUCTORS = {"__init__", "__new__", "__post_init__"}
_kinds: dict[CodeType, int] = {}


def _kind(code: CodeType) -> int:
    """Whose code it is: of tests and conformance checks, of the library, or of torch, tensordict and others."""
    if code not in _kinds:
        parts = Path(code.co_filename).parts
        tests = "tests" in parts or ("rl", "testing") in pairwise(parts)
        # Decorators of constructors that take foreign arguments stand between a test and a constructor.
        library = "rl" in parts and parts[-3:] != ("rl", "core", "arguments.py")
        library = library and "site-packages" not in parts[parts.index("rl") + 1 :]
        _kinds[code] = _TESTS if tests else _LIBRARY if library else _OTHER
    return _kinds[code]


def _made_by_a_test(frame: FrameType | None) -> bool:
    """Whether a test asked for a tensor, itself or by a constructor of the library."""
    outermost = ""
    while frame is not None:
        kind = _kind(frame.f_code)
        if kind == _TESTS:
            return outermost in {"", *_CONSTRUCTORS}
        if kind == _LIBRARY:
            outermost = frame.f_code.co_name
        frame = frame.f_back
    return False


class PlaceTests(DeviceContext):
    """Place what tests make on a device.

    Args:
        device: The device.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        makes = func in _device_constructors() and kwargs.get("device") is None
        if not makes or not _made_by_a_test(sys._getframe(1)):
            return func(*args, **kwargs)
        generator = kwargs.get("generator")
        if generator is not None and generator.device.type != self.device.type:
            return func(*args, **kwargs).to(self.device)
        kwargs["device"] = self.device
        return func(*args, **kwargs)


def start(name: str) -> None:
    """Place what test modules, fixtures and tests make from now on, until the process ends.

    Args:
        name: The device.
    """
    device = torch.device(name)
    if find_spec("rl.replay"):  # a storage is on the CPU unless its device is said
        replay = import_module("rl.replay")
        inspect.unwrap(replay.LazyTensorStorage.__init__).__kwdefaults__["device"] = device
    PlaceTests(device).__enter__()


def check_alive() -> None:
    """End this process if the device can no longer be used, as after an index that is out of range.

    All tests after it would fail. pytest-xdist goes on in another process, and calls the test failed.
    """
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        os._exit(1)
