"""Service behind `InferenceServer`: a policy for batches of rows, and the thread that forms the batches."""

from __future__ import annotations

import socket
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from secrets import token_bytes
from selectors import EVENT_READ, DefaultSelector
from threading import Lock, Thread, current_thread
from time import monotonic
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, set_interaction_type
from torch import Tensor

from rl.collectors._collector import VERSION
from rl.collectors._connections import Connection, as_array, as_tensor, end_error, forget_in_forks, timeout_error
from rl.collectors._loops import TensorDictAct, leaves_of, opaque_act, tensordict_of, unchanged_leaves
from rl.collectors._pipeline import concrete
from rl.collectors.weights import SharedWeights, load_weights
from rl.core import set_recurrent_mode
from rl.core.errors import ArgumentError, SpecError, WorkerError
from rl.core.keys import NestedKey, key_str
from rl.core.profiling import profiled


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
        self._connections: set[Connection] = set()
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
            self._connections.add(Connection(self, one, self._selector))

    def _hear(self, _: int) -> None:
        with suppress(BlockingIOError):
            self._bell.recv(4096)

    def drop(self, connection: Connection) -> None:
        """Remove a connection that was closed."""
        self._connections.discard(connection)

    def take(self, message: tuple[Any, ...], send: Callable[[Any], None]) -> None:
        """Queue the request of a message, whose reply is sent."""
        number, model, mode, size, groups, leaves, timeout, sent = message
        mode = None if mode is None else InteractionType(mode)
        tensors = {key: as_tensor(value) for key, value in leaves.items()}

        def reply(outputs: dict[NestedKey, Tensor] | None, error: WorkerError | None) -> None:
            arrays = None if outputs is None else {key: as_array(leaf) for key, leaf in outputs.items()}
            send((number, arrays, error))

        self._inbox.append(Request(model, mode, size, groups, tensors, timeout, reply, sent=sent))


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
