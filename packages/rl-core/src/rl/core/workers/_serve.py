"""The loop of a worker process."""

from __future__ import annotations

import ctypes
import os
import pickle
import random
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

import torch

from rl.core.workers._base import failure_of
from rl.core.workers._pipe import Descriptor

__all__ = ["CLOSE", "DONE", "FAILED", "MESSAGE", "serve"]

#: bytes of commands; those below `MESSAGE` are numbers of the handler's `commands`
MESSAGE, CLOSE = 254, 255
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
#: bytes of answers
DONE, FAILED = b"d", b"f"


def serve(
    make: Callable[[], Any] | bytes,
    commands: Descriptor,
    answers: Descriptor,
    connection: Connection,
    unused: list[Any],
    num_threads: int,
    seed: int,
    parent: int | None,
    apart: bool,  # noqa: FBT001  # internal
) -> None:
    """Make the handler, and execute commands until the parent closes the pipe, or ends.

    Args:
        make: makes the handler; pickled unless the process is a fork.
        commands: one byte for each command.
        answers: one byte for each answer.
        connection: pickled messages and results.
        unused: ends of the pipes that belong to the parent.
        num_threads: of torch in this process.
        seed: of the random generators of this process, which a fork would share with its parent.
        parent: the process whose main thread starts this one, and at whose end Linux kills it; None for another thread,
            at whose end Linux would kill it too, and for a server.
        apart: execute commands in a thread of its own.
    """
    _end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    if hasattr(signal, "SIGHUP"):  # so is the end of the terminal
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for end in unused:
        end.close()
    _seed(seed)
    run = partial(_run, make, _Server(commands, answers, connection), num_threads)
    if not apart:
        run()
        return
    thread = Thread(target=run, name="commands")
    thread.start()
    thread.join()


def _run(make: Callable[[], Any] | bytes, server: _Server, num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    with suppress(BrokenPipeError):
        server.run(make)


def _end_with_parent(parent: int | None) -> None:
    """End this process when its parent ends, which a command that hangs would not notice."""
    if parent is None or sys.platform != "linux":
        Thread(target=_watch_parent, name="watches the parent", daemon=True).start()
        return
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


def _watch_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class _Server:
    """Executes commands and answers them.

    Args:
        commands: one byte for each command.
        answers: one byte for each answer.
        connection: messages and results.
    """

    def __init__(self, commands: Descriptor, answers: Descriptor, connection: Connection) -> None:
        self._commands, self._answers, self._connection = commands.number, answers.number, connection
        self._handler: Any = None

    def run(self, make: Callable[[], Any] | bytes) -> None:
        """Make the handler, and execute commands until there are no more."""
        if not self._execute(lambda: self._begin(make)):
            return
        fast = list(self._handler.commands)
        while (byte := os.read(self._commands, 1)) and byte[0] != CLOSE:
            self._execute(self._message if byte[0] == MESSAGE else fast[byte[0]])
        self._handler.close()

    def _begin(self, make: Any) -> None:
        self._handler = (pickle.loads(make) if isinstance(make, bytes) else make)()  # of the parent

    def _message(self) -> bytes:
        name, args = pickle.loads(self._connection.recv_bytes())  # of the parent
        return pickle.dumps(getattr(self._handler, name)(*args))

    def _execute(self, call: Callable[[], bytes | None]) -> bool:
        """Call a function and answer; False if it raised."""
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001  # reported to the parent
            self._answer(FAILED, pickle.dumps(failure_of(error)))
            return False
        self._answer(DONE, result)
        return True

    def _answer(self, byte: bytes, message: bytes | None) -> None:
        os.write(self._answers, byte)  # first: the parent reads the message when it has the byte
        if message is not None:
            self._connection.send_bytes(message)


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))
