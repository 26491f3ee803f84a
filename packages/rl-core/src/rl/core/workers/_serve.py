"""The loop of a worker process."""

from __future__ import annotations

import ctypes
import os
import pickle
import random
import signal
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.errors import MissingExtraError, RLError
from rl.core.workers._base import Descriptor, Failure, GroupBase, Undivided, WorkerState, failure_of

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
    """Create the handler, and execute commands until the parent closes the pipe, or ends.

    Args:
        make: Function that creates the handler; pickled unless the process is a fork.
        commands: One byte for each command.
        answers: One byte for each answer.
        connection: Pickled messages and results.
        unused: Ends of the pipes that belong to the parent.
        num_threads: Number of threads of torch in this process.
        seed: Seed of the random generators of this process, which a fork would share with its parent.
        parent: Process whose main thread starts this one, and at whose end Linux kills it; None for another thread,
            at whose end Linux would kill it too, and for a server.
        apart: Whether to execute commands in a thread of its own.
    """
    _end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    if hasattr(signal, "SIGHUP"):  # so is the hang-up of the terminal
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
    if os.getppid() != parent:  # the parent ended before prctl
        os._exit(1)


def _watch_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class _Server:
    """Executes commands and answers them.

    Args:
        commands: One byte for each command.
        answers: One byte for each answer.
        connection: Messages and results.
    """

    def __init__(self, commands: Descriptor, answers: Descriptor, connection: Connection) -> None:
        self._commands, self._answers, self._connection = commands.number, answers.number, connection
        self._handler: Any = None

    def run(self, make: Callable[[], Any] | bytes) -> None:
        """Create the handler, and execute commands until there are no more."""
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


Task = tuple[int | str, Sequence[Any]]
"""Number of a command, or name of a method and its arguments."""

Answer = tuple[int, Any, Failure | None]
"""Number of a worker, and its result or exception."""


@dataclass(kw_only=True)
class _Worker(WorkerState):
    thread: Thread
    tasks: SimpleQueue[Task | None]


class ThreadGroup(GroupBase):
    """Threads that execute commands: the methods of `WorkerGroup` in this process.

    Data is passed as it is. A thread cannot be killed: one that is stuck ends with the process.

    Args:
        makers: Functions that create the handlers, each called in its thread.
        owner: Name of the component in messages.
        timeout: Seconds after which a missing answer is an error; None for no limit.
        shutdown_timeout: Seconds that `close` waits for the threads.

    Raises:
        WorkerError: If a handler cannot be created.
    """

    def __init__(
        self,
        makers: Sequence[Callable[[], Any]],
        *,
        owner: str,
        timeout: float | None = None,
        shutdown_timeout: float = 10.0,
    ) -> None:
        super().__init__(owner, timeout)
        self._answers: deque[Answer] = deque()
        self._calls: SimpleQueue[None] = (
            SimpleQueue()
        )  # one after each answer: an interrupt may lose what `get` returns
        self._finish = weakref.finalize(self, _stop, self._workers, shutdown_timeout)
        for index, make in enumerate(makers):
            tasks: SimpleQueue[Task | None] = SimpleQueue()
            thread = Thread(
                target=_serve,
                args=(make, index, tasks, self._answers, self._calls),
                name=f"{owner} worker {index}",
                daemon=True,
            )
            thread.start()
            self._workers.append(_Worker(thread=thread, tasks=tasks))
        try:
            self.wait()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the threads; their handlers are closed. May be called twice."""
        self._finish()

    def _post(self, index: int, command: int) -> None:
        self._workers[index].tasks.put((command, ()))

    def _post_message(self, index: int, method: str, args: Sequence[Any]) -> None:
        self._workers[index].tasks.put((method, args))

    def _receive(self, limit: float | None) -> bool:
        if not self._answers or not self._calls.empty():  # consume a token, also that of an answer read before
            try:
                self._calls.get(timeout=None if limit is None else max(0.0, limit - monotonic()))
            except Empty:
                return False
        with Undivided():
            if self._answers:
                self._take(*self._answers.popleft())
        return True


def _serve(
    make: Callable[[], Any],
    index: int,
    tasks: SimpleQueue[Task | None],
    answers: deque[Answer],
    calls: SimpleQueue[None],
) -> None:
    """Create the handler and execute tasks until there is None."""
    handler: Any = None
    task: Task | None = ("", ())
    while task is not None:
        command, args = task
        result, failure = None, None
        try:
            if command == "":
                handler = make()
            elif isinstance(command, str):
                result = getattr(handler, command)(*args)
            else:
                handler.commands[command]()
        except BaseException as error:  # noqa: BLE001  # reported to the parent
            failure = failure_of(error)
        answers.append((index, result, failure))
        calls.put(None)
        task = tasks.get()
    if handler is not None:
        handler.close()


def _stop(workers: list[_Worker], timeout: float) -> None:
    limit = monotonic() + timeout
    for worker in workers:
        worker.tasks.put(None)
    for worker in workers:
        worker.thread.join(max(0.0, limit - monotonic()))
    workers.clear()


def import_ray(owner: str, extra: str) -> Any:
    """Return the module `ray`.

    Args:
        owner: Name of the component in messages.
        extra: Requirement that installs Ray, such as ``rl-replay[ray]``.

    Raises:
        MissingExtraError: If Ray is not installed.
    """
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        raise MissingExtraError(f'{owner} needs Ray, which is not installed: pip install "{extra}"') from error


def start_ray(ray: Any, config: Mapping[str, Any] | None, owner: str) -> None:
    """Start Ray, or connect to a cluster.

    Args:
        ray: Module.
        config: Arguments of ``ray.init``; `log_to_driver` is False unless it is among them.
        owner: Name of the component in messages.

    Raises:
        RLError: If there is no cluster at the address.
    """
    config = {"log_to_driver": False, **(config or {})}
    try:
        ray.init(**config)
    except ConnectionError as error:
        raise RLError(
            f"{owner} finds no Ray cluster at {config.get('address')!r} ({str(error).splitlines()[0]}): start one"
            " with `ray start --head`, or leave the address out to start Ray here"
        ) from error


class _Batch:
    """A TensorDict as arrays."""

    def __init__(self, batch: TensorDictBase) -> None:
        self.entries = {name: packed(value) for name, value in batch.items()}
        self.batch_size, self.names = tuple(batch.batch_size), batch.names

    def tensordict(self) -> TensorDict:
        """Return the batch, in memory of its own."""
        names: Any = self.names if any(self.names) else None
        return TensorDict(unpacked(self.entries), batch_size=self.batch_size, names=names)


class _Array:
    """A tensor as an array, or as itself if NumPy does not have its dtype."""

    def __init__(self, value: Tensor) -> None:
        value = value.detach().cpu()
        try:
            self.value: Any = value.numpy()
        except (TypeError, RuntimeError):
            self.value = value

    def tensor(self) -> Tensor:
        """Return the tensor, in memory of its own."""
        return torch.tensor(self.value) if isinstance(self.value, (np.ndarray, np.generic)) else self.value


def packed(value: Any) -> Any:
    """Return `value` with arrays in place of tensors and TensorDicts, also inside tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return _Array(value)
    if type(value) is TensorDict:  # others, such as lazy stacks, are pickled
        return _Batch(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map(packed, value))
    if isinstance(value, dict):
        return {key: packed(item) for key, item in value.items()}
    return value


def unpacked(value: Any) -> Any:
    """Return the value that `packed` was given, in memory of its own."""
    if isinstance(value, _Array):
        return value.tensor()
    if isinstance(value, _Batch):
        return value.tensordict()
    if isinstance(value, (tuple, list)):
        return type(value)(map(unpacked, value))
    if isinstance(value, dict):
        return {key: unpacked(item) for key, item in value.items()}
    return value
