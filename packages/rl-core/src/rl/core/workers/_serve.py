"""The loop of a worker process."""

from __future__ import annotations

import os
import pickle
import random
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from rl.core.workers._pipe import Descriptor

__all__ = ["CLOSE", "DONE", "FAILED", "MESSAGE", "serve"]

#: bytes of commands; those below `MESSAGE` are numbers of the handler's `commands`
MESSAGE, CLOSE = 254, 255
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
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    for end in unused:
        end.close()
    torch.set_num_threads(num_threads)
    _seed(seed)
    handler: Any = None

    def answer(byte: bytes, message: bytes | None = None) -> None:
        os.write(answers.number, byte)  # first: the parent reads the message when it has the byte
        if message is not None:
            connection.send_bytes(message)

    def fail(error: BaseException) -> None:
        answer(FAILED, pickle.dumps((type(error).__name__, str(error), traceback.format_exc())))

    with suppress(BrokenPipeError):
        try:
            handler = (pickle.loads(make) if isinstance(make, bytes) else make)()  # of the parent
        except BaseException as error:  # noqa: BLE001  # reported to the parent
            fail(error)
            return
        fast = list(handler.commands)
        answer(DONE)
        while True:
            byte = os.read(commands.number, 1)
            if not byte or byte[0] == CLOSE:
                break
            result = None
            try:
                if byte[0] == MESSAGE:
                    name, args = pickle.loads(connection.recv_bytes())  # of the parent
                    result = pickle.dumps(getattr(handler, name)(*args))
                else:
                    fast[byte[0]]()
            except BaseException as error:  # noqa: BLE001  # reported to the parent
                fail(error)
            else:
                answer(DONE, result)
    handler.close()


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))
