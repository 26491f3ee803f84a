"""Service behind `InferenceServer`: a policy for batches of rows, and the thread that forms the batches."""

from __future__ import annotations

import hmac
import os
import pickle
import socket
import struct
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_bytes
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from threading import Lock, Thread, current_thread
from time import monotonic
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, set_interaction_type
from torch import Tensor

from rl.collectors._collector import VERSION
from rl.collectors._loops import TensorDictAct, leaves_of, opaque_act, tensordict_of, unchanged_leaves
from rl.collectors._pipeline import concrete
from rl.collectors.weights import SharedWeights, load_weights
from rl.core import set_recurrent_mode
from rl.core.errors import ArgumentError, SpecError, WorkerError, WorkerTimeoutError
from rl.core.keys import NestedKey, key_str
from rl.core.profiling import profiled

LOCAL = "127.0.0.1"
"""Address of this machine, whose processes share the clock of `monotonic`."""

HEADER = struct.Struct("!Q")
"""Length of a message, in front of it."""


class ServedPolicy:
    """A policy that is called with batches of rows, and the version of its weights.

    Args:
        policy: The policy, whose weights are loaded; None for rows that are only stamped with the version.
        acting: The policy as it is called, for example compiled.
        device: Device of the policy; None if it is unknown.
    """

    def __init__(self, policy: Any, acting: Any, device: torch.device | None) -> None:
        self.policy, self.version = policy, 0
        self._acting, self._device = acting, device
        self._acts: dict[torch.device, TensorDictAct] = {}  # by device of the rows
        self._store: SharedWeights | None = None
        self._targets: dict[str, Tensor] = {}

    def __call__(self, rows: TensorDictBase, device: torch.device) -> TensorDictBase:
        """Write into rows on `device` what the policy writes, and ``policy_version``."""
        if self._store is not None:
            self.version = self._store.acquire(self._targets, 0, self.version)
        if self._acting is not None:
            if device not in self._acts:
                elsewhere = None if self._device == concrete(device) else self._device
                self._acts[device] = opaque_act(self._acting, elsewhere, device)
            with profiled("policy"):
                rows = self._acts[device](rows)
        return rows.set(VERSION, torch.full(rows.batch_size, self.version, device=device))

    def load(self, source: Any, version: int | None = None) -> None:
        """Load weights, unless they are None or the policy itself, and count the version."""
        if source is not None and source is not self.policy:
            load_weights(self.policy, source)
        self.version = self.version + 1 if version is None else version

    def follow(self, store: SharedWeights) -> None:
        """Read weights and their version from shared memory, before each batch."""
        self._targets = self.policy.state_dict()
        store.map(self._targets)
        self._store = store


class Request:
    """A TensorDict for a policy, whose rows are one row of a batch.

    Args:
        model: Name of the policy.
        mode: Exploration type.
        size: Batch size.
        groups: Batch sizes of nested TensorDicts with another one.
        leaves: Tensors by key.
        timeout: Seconds after which the reply is useless; None for no limit.
        reply: Function that gets the outputs by key, or None and an error.
        begin: Function that returns False if the request was cancelled.
        sent: Time of `monotonic` at which it was sent; now if None.
    """

    __slots__ = ("arrived", "begin", "group", "leaves", "limit", "reply", "timeout")

    def __init__(
        self,
        model: str,
        mode: InteractionType | None,
        size: Sequence[int],
        groups: Mapping[NestedKey, Sequence[int]],
        leaves: Mapping[NestedKey, Tensor],
        timeout: float | None,
        reply: Callable[[dict[NestedKey, Tensor] | None, WorkerError | None], Any],
        begin: Callable[[], bool] = lambda: True,
        sent: float | None = None,
    ) -> None:
        self.leaves, self.reply, self.begin, self.timeout = leaves, reply, begin, timeout
        self.arrived = monotonic() if sent is None else sent
        self.limit = None if timeout is None else self.arrived + timeout
        # requests of one group can be rows of one batch
        form = tuple((key, leaf.shape, leaf.dtype, leaf.device) for key, leaf in leaves.items())
        self.group = (model, mode, tuple(size), tuple(groups.items()), form)


def parts_of(tensordict: TensorDictBase) -> tuple[dict[NestedKey, Tensor], dict[NestedKey, torch.Size]]:
    """Return the tensors of a request by key, and the batch sizes of nested TensorDicts with another one.

    Raises:
        ArgumentError: If an entry is no tensor.
    """
    leaves: dict[NestedKey, Tensor] = {}
    groups: dict[NestedKey, torch.Size] = {}
    entries: Any = tensordict.items(include_nested=True)
    for key, value in entries:
        if isinstance(value, Tensor):
            leaves[key] = value
        elif not isinstance(value, TensorDictBase):
            raise ArgumentError(
                f"InferenceClient: {key_str(key)} is {type(value).__name__}, expected a tensor: leave it out of the"
                " request, with tensordict.exclude"
            )
        elif value.batch_size != tensordict.batch_size:
            groups[key] = value.batch_size
    return leaves, groups


class Service:
    """Thread that receives requests, of threads of this process and of connections, and serves them in batches.

    Args:
        policies: The policies by name.
        most: Number of requests of a batch at most.
        least: Number of requests that a batch waits for.
        wait: Seconds that it waits at most.
        host: Address of the network interface to listen on.
    """

    def __init__(self, policies: Mapping[str, ServedPolicy], most: int, least: int, wait: float, host: str) -> None:
        self._policies, self._most, self._least, self._wait = policies, most, least, wait
        self._inbox: deque[Request] = deque()  # of other threads
        self._groups: dict[Any, deque[Request]] = {}  # the group of the oldest request first
        self._loading = Lock()  # held by a batch, and by new weights
        self._counts = [0, 0]
        self._ends = self._asleep = False
        self.ended = False
        self.secret = token_bytes(32)
        self._listener = socket.create_server((host, 0), backlog=128)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._bell, self._ring = socket.socketpair()
        self._selector = DefaultSelector()
        for one, answer in ((self._listener, self._accept), (self._bell, self._hear)):
            one.settimeout(0.0)
            self._selector.register(one, EVENT_READ, answer)
        self._ring.settimeout(0.0)
        self._connections: set[_Connection] = set()
        forget_in_forks(self)
        self._thread = Thread(target=self._run, name="inference server", daemon=True)
        self._thread.start()

    # ---- other threads

    def submit(self, request: Request) -> None:
        """Queue a request; it is replied to in the thread of the service."""
        self._inbox.append(request)
        self._wake()
        if self.ended:
            self._fail_all()

    def load(self, model: str, source: Any, version: int) -> None:
        """Load weights between two batches.

        Raises:
            WorkerError: If the thread has ended, or is that of another process.
        """
        if self.ended:
            raise end_error("its thread is not in this process")
        with self._loading:
            self._policies[model].load(source, version)

    def stats(self) -> dict[str, float]:
        """Return the number of requests and batches that were served, and their ratio."""
        requests, batches = self._counts
        return {"requests": requests, "batches": batches, "avg_batch_size": requests / max(1, batches)}

    def close(self) -> None:
        """End the thread after its batch, and wait for it; requests that wait fail. May be called twice."""
        self._ends = True
        self._wake()
        if current_thread() is not self._thread:
            self._thread.join(_PATIENCE)

    def forget(self) -> None:
        """Close the copies of the sockets that a fork has: with them clients would not see the end of this process."""
        for one in (self._listener, self._bell, self._ring, *(other.socket for other in self._connections)):
            one.close()
        self.ended = True

    def _wake(self) -> None:
        if self._asleep:
            with suppress(OSError):  # it is full, or closed
                self._ring.send(b"w")

    # ---- the thread

    def _run(self) -> None:
        try:
            with torch.no_grad(), set_recurrent_mode(False):
                while not self._ends:
                    self._receive()
                    self._serve(self._next())
        finally:
            for waiting in self._groups.values():
                self._inbox.extend(waiting)
            self.ended = True
            for one in [*self._connections]:
                one.close()
            for one in (self._listener, self._bell, self._ring):
                one.close()
            self._selector.close()
            self._fail_all()

    def _receive(self) -> None:
        """Sort requests that have come into groups; wait for them if no batch is ready."""
        self._asleep = True  # before the inbox is read: later requests ring the bell
        events = self._selector.select(0.0 if self._inbox or self._ends else self._pause())
        self._asleep = False
        for key, mask in events:
            key.data(mask)
        while self._inbox:
            request = self._inbox.popleft()
            self._groups.setdefault(request.group, deque()).append(request)

    def _pause(self) -> float | None:
        """Return the seconds until a batch is ready; None if there are no requests."""
        if any(len(waiting) >= self._least for waiting in self._groups.values()):
            return 0.0
        oldest = min((waiting[0].arrived for waiting in self._groups.values()), default=None)
        return None if oldest is None else max(0.0, oldest + self._wait - monotonic())

    def _next(self) -> list[Request]:
        """Return the requests of the next batch that is ready."""
        now = monotonic()
        for group, waiting in self._groups.items():
            if len(waiting) >= self._least or waiting[0].arrived + self._wait <= now:
                del self._groups[group]
                taken = [waiting.popleft() for _ in range(min(len(waiting), self._most))]
                if waiting:
                    self._groups[group] = waiting  # at the end: other groups are first
                return [request for request in taken if self._is_wanted(request, now)]
        return []

    def _is_wanted(self, request: Request, now: float) -> bool:
        if request.limit is None or now <= request.limit:
            return request.begin()
        if request.begin():
            request.reply(None, timeout_error(request.group[0], request.timeout))
        return False

    def _serve(self, requests: Sequence[Request]) -> None:
        if not requests:
            return
        try:
            rows = self._rows(requests)
        except BaseException as error:  # noqa: BLE001  # the client's
            if len(requests) > 1:  # each alone, so that the error reaches the request that causes it
                for request in requests:
                    self._serve([request])
                return
            requests[0].reply(None, _failure(requests[0].group[0], error))
            return
        self._counts[0] += len(requests)
        self._counts[1] += 1
        for index, request in enumerate(requests):
            request.reply({key: leaf[index] for key, leaf in rows.items()}, None)

    def _rows(self, requests: Sequence[Request]) -> dict[NestedKey, tuple[Tensor, ...]]:
        """Call the policy for requests of one group; return what it wrote by key, a row for each request.

        Raises:
            SpecError: If the policy has written an entry that is no tensor.
        """
        model, mode, size, groups, form = requests[0].group
        leaves: dict[NestedKey, Any] = {key: torch.stack([one.leaves[key] for one in requests]) for key, *_ in form}
        count = len(requests)
        sizes = {key: torch.Size((count, *inner)) for key, inner in groups}
        rows = tensordict_of(leaves, torch.Size((count, *size)), sizes)
        device = form[0][-1] if form else torch.device("cpu")
        with self._loading, set_interaction_type(mode, thread_local=True):
            found = leaves_of(self._policies[model](rows, device))
        new = found.keys() - unchanged_leaves(leaves, found)
        for key in new:
            if not isinstance(found[key], Tensor):
                raise SpecError(f"the policy wrote {key_str(key)}, {type(found[key]).__name__}, expected a tensor")
        return {key: leaf.unbind(0) for key, leaf in found.items() if key in new}

    def _fail_all(self) -> None:
        """Fail the requests that wait, after the end of the thread."""
        while self._inbox:
            with suppress(IndexError):  # another thread was faster
                request = self._inbox.popleft()
                if request.begin():
                    request.reply(None, end_error("it was shut down"))

    # ---- connections

    def _accept(self, _: int) -> None:
        with suppress(OSError):
            one, _ = self._listener.accept()
            self._connections.add(_Connection(self, one, self._selector))

    def _hear(self, _: int) -> None:
        with suppress(BlockingIOError):
            self._bell.recv(4096)

    def drop(self, connection: _Connection) -> None:
        """Remove a connection that was closed."""
        self._connections.discard(connection)

    def take(self, request: Request) -> None:
        """Queue a request of a connection."""
        self._inbox.append(request)


class _Connection:
    """The service's end of a connection; it never waits for the client.

    Args:
        service: The service.
        one: The socket.
        selector: The selector of the service.
    """

    def __init__(self, service: Service, one: socket.socket, selector: Any) -> None:
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
        number, model, mode, size, groups, leaves, timeout, sent = pickle.loads(message)  # of a client with the secret
        mode = None if mode is None else InteractionType(mode)
        tensors = {key: as_tensor(value) for key, value in leaves.items()}

        def reply(outputs: dict[NestedKey, Tensor] | None, error: WorkerError | None) -> None:
            arrays = None if outputs is None else {key: as_array(leaf) for key, leaf in outputs.items()}
            self._send((number, arrays, error))

        self._service.take(Request(model, mode, size, groups, tensors, timeout, reply, sent=sent))

    def _send(self, message: Any) -> None:
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


def _failure(model: str, error: BaseException) -> WorkerError:
    what, trace = traceback.format_exception_only(error), traceback.format_exception(error)
    return WorkerError(f"InferenceServer: policy {model!r} raised {what[-1].strip()}\n\n{''.join(trace)}")


def settle(future: Future[Any], result: Callable[[], Any] | None, error: BaseException | None) -> None:
    """Complete a future that is running."""
    if error is None and result is not None:
        try:
            future.set_result(result())
            return
        except Exception as other:  # noqa: BLE001  # raised by `Future.result`
            error = other
    future.set_exception(error)


_PATIENCE = 10.0
"""Seconds that the end of a service waits for its last batch: a policy that hangs does not stop the process."""

_SOCKETS: weakref.WeakSet[Any] = weakref.WeakSet()


def forget_in_forks(owner: Any) -> None:
    """Call ``owner.forget()`` in every fork of this process."""
    _SOCKETS.add(owner)


def _forget() -> None:
    for owner in [*_SOCKETS]:
        owner.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
