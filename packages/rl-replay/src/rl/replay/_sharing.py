"""Lock of a buffer that several processes use."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rl.core.errors import BackendError

__all__ = ["SharedLock"]


class SharedLock:
    """Reentrant lock between threads and processes, on a file, which is released if a process ends.

    Args:
        path: the file; it is created.
        pull: method, called when the lock was acquired: reads what other processes changed.
        push: called before it is released.
        forked: called in a forked process before its first use.

    Raises:
        BackendError: on a system without locks of files.
    """

    def __init__(
        self, path: Path, pull: Callable[[], None], push: Callable[[], None], forked: Callable[[], None]
    ) -> None:
        if sys.platform == "win32":  # pragma: no cover
            raise BackendError("shared=True needs locks of files, which this system does not have")
        self._path: Final = path
        # The buffer has the lock: without weak references, its files would stay until cycles are collected.
        self._pull, self._push, self._forked = map(weakref.WeakMethod, (pull, push, forked))
        self._open()

    def _open(self) -> None:
        # Each process opens the file itself: a lock belongs to an open file, which forked processes would share.
        self._file: Any = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        self._process, self._depth, self._threads = os.getpid(), 0, threading.RLock()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            os.close(self._file)
            self._open()
            _call(self._forked)
        self._threads.acquire()
        if self._depth == 0:
            try:
                _lock(self._file)
                try:
                    _call(self._pull)
                except BaseException:
                    _unlock(self._file)
                    raise
            except BaseException:
                self._threads.release()
                raise
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        try:
            if self._depth == 0:
                try:
                    _call(self._push)
                finally:
                    _unlock(self._file)
        finally:
            self._threads.release()

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            os.close(self._file)


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    found = method()
    if found is not None:
        found()


if sys.platform != "win32":
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)

    def _unlock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
