"""Connections between an `InferenceServer` and its clients in other processes."""

from __future__ import annotations

import hmac
import os
import pickle
import socket
import struct
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from selectors import EVENT_READ, EVENT_WRITE
from threading import Lock, Thread
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import WorkerError, WorkerTimeoutError
from rl.core.keys import NestedKey

LOCAL = "127.0.0.1"
"""Address of this machine, whose processes share the clock of `monotonic`."""

HEADER = struct.Struct("!Q")
"""Length of a message, in front of it."""


@dataclass(frozen=True)
class Model:
    """Keys and recurrent states of a policy, as far as it declares them."""

    in_keys: tuple[NestedKey, ...] | None
    out_keys: tuple[NestedKey, ...] | None
    states: tuple[Any, ...]


@dataclass(frozen=True)
class Contact:
    """What a client in any process needs to know of a server."""

    address: tuple[str, int]
    secret: bytes
    models: Mapping[str, Model]


class Connection:
    """The service's end of a connection; it never waits for the client.

    Args:
        service: The service, with `secret`, `take` and `drop`.
        one: The socket.
        selector: The selector of the service.
    """

    def __init__(self, service: Any, one: socket.socket, selector: Any) -> None:
        one.settimeout(0.0)
        set_options(one)
        self.socket, self._service, self._selector = one, service, selector
        self._in, self._out = bytearray(), bytearray()
        self._trusted = self._closed = False
        selector.register(one, EVENT_READ, self._ready)

    def close(self) -> None:
        """Close it. May be called twice."""
        if not self._closed:
            self._closed = True
            self._selector.unregister(self.socket)
            self.socket.close()
            self._service.drop(self)

    def _ready(self, mask: int) -> None:
        try:
            if mask & EVENT_WRITE:
                self._flush()
            if mask & EVENT_READ:
                self._read()
        except BlockingIOError:
            pass
        except Exception:  # noqa: BLE001  # the client has ended, or sends something else: only its connection ends
            self.close()

    def _read(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError
        self._in += data
        while len(self._in) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._in)
            end = HEADER.size + length
            if not self._trusted and length != len(self._service.secret):
                raise ConnectionRefusedError
            if len(self._in) < end:
                return
            message = bytes(memoryview(self._in)[HEADER.size : end])
            del self._in[:end]
            self._handle(message)

    def _handle(self, message: bytes) -> None:
        if not self._trusted:  # nothing is unpickled before the client has shown the secret
            if not hmac.compare_digest(message, self._service.secret):
                raise ConnectionRefusedError
            self._trusted = True
            return
        self._service.take(pickle.loads(message), self._send)  # of a client with the secret

    def _send(self, message: Any) -> None:
        """Send a message, now or when the client has read others."""
        if self._closed:
            return
        waiting = bool(self._out)
        self._out += frame(pickle.dumps(message, 5))
        if not waiting:
            self._ready(EVENT_WRITE)

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: self.socket.send(memoryview(self._out)[: 1 << 20].tobytes())]
        finally:
            if self.socket.fileno() >= 0:
                self._selector.modify(self.socket, EVENT_READ | (EVENT_WRITE if self._out else 0), self._ready)


class Link:
    """The client's end of a connection, for all threads of a process.

    Args:
        contact: The server.

    Raises:
        WorkerError: If it has ended.
    """

    def __init__(self, contact: Contact) -> None:
        try:
            self._socket = socket.create_connection(contact.address)
        except OSError as error:
            raise end_error(f"no connection to {contact.address[0]}:{contact.address[1]}") from error
        set_options(self._socket)
        self._futures: dict[int, Callable[..., Any]] = {}
        self._sending, self._count, self.ended = Lock(), 0, False
        self._socket.sendall(frame(contact.secret))
        Thread(target=self._run, name="inference client", daemon=True).start()

    def submit(self, message: tuple[Any, ...], reply: Callable[[Any, WorkerError | None], Any]) -> None:
        """Send a request."""
        with self._sending:
            self._count += 1
            self._futures[self._count] = reply
            try:
                self._socket.sendall(frame(pickle.dumps((self._count, *message), 5)))
            except OSError:
                self._end()
            except BaseException:  # a part of the message may be sent
                self.close()
                raise
        if self.ended:
            self._fail_all()

    def close(self) -> None:
        """End the connection; requests without a reply fail. May be called twice."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Close the copy of the socket that a fork has."""
        self._socket.close()

    def _end(self) -> None:
        self.ended = True
        self.close()

    def _run(self) -> None:
        with suppress(OSError, EOFError):
            while True:
                (length,) = HEADER.unpack(self._read(HEADER.size))
                number, arrays, error = pickle.loads(self._read(length))  # of the server
                outputs = None if arrays is None else {key: as_tensor(value) for key, value in arrays.items()}
                self._futures.pop(number)(outputs, error)
        self._end()
        self._socket.close()
        self._fail_all()

    def _read(self, length: int) -> bytearray:
        data = bytearray(length)
        view, done = memoryview(data), 0
        while done < length:
            count = self._socket.recv_into(view[done:])
            if not count:
                raise EOFError
            done += count
        return data

    def _fail_all(self) -> None:
        while self._futures:
            with suppress(KeyError):  # another thread was faster
                self._futures.popitem()[1](None, end_error("its connection has ended"))


def set_options(one: socket.socket) -> None:
    """Send small messages at once, and notice within a minute that the other machine has vanished."""
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            one.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def frame(message: bytes) -> bytes:
    """Return a message with its length in front."""
    return HEADER.pack(len(message)) + message


def as_array(leaf: Tensor) -> Any:
    """Return a tensor as an array, or as a tensor if NumPy does not have its dtype; pickling a tensor is slow."""
    leaf = leaf.detach().cpu()
    try:
        return leaf.numpy()
    except (TypeError, RuntimeError):
        return leaf


def as_tensor(value: Any) -> Tensor:
    """Return the tensor of `as_array`, after pickling."""
    return value if isinstance(value, Tensor) else torch.as_tensor(value)


def end_error(why: str) -> WorkerError:
    """Return the error of requests to a server that has ended."""
    error = WorkerError(f"InferenceServer: the server has ended ({why}). Start one again, and use its client()")
    error.ended = True
    return error


def timeout_error(model: str, timeout: float | None) -> WorkerTimeoutError:
    """Return the error of a request that was not replied to in time."""
    return WorkerTimeoutError(
        f"InferenceServer: no reply of policy {model!r} within {timeout} s. Allow more with timeout=, or serve fewer"
        " clients; stats() has the size of the batches"
    )


_SOCKETS: weakref.WeakSet[Any] = weakref.WeakSet()


def forget_in_forks(owner: Any) -> None:
    """Call ``owner.forget()`` in every fork of this process."""
    _SOCKETS.add(owner)


def _forget() -> None:
    for owner in [*_SOCKETS]:
        owner.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
