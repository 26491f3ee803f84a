"""`InferenceServer`: one policy for the requests of many threads, processes and machines, computed in batches."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from threading import BoundedSemaphore, Lock
from time import monotonic
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from tensordict.nn import interaction_type
from torch import Tensor

from rl.collectors._connections import LOCAL, Contact, Link, as_array, forget_in_forks, timeout_error
from rl.collectors._hosts import Actor, Here, Process
from rl.collectors._serving import Request, Service, parts_of, settle
from rl.collectors.weights import chosen_weights, matching_weights
from rl.core.arguments import as_integer, as_number, foreign_arguments, one_of
from rl.core.errors import ArgumentError, RLError, WorkerError, WorkerTimeoutError
from rl.core.keys import NestedKey

__all__ = ["InferenceClient", "InferenceServer"]

BACKENDS = ("thread", "process", "ray")


@foreign_arguments()
class InferenceServer:
    """Server that computes a policy for requests of threads, processes and machines, many in one batch.

    `client` returns a policy that sends its TensorDict to the server and returns a copy with what the policy has
    written there, and ``policy_version`` int64 ``[*B]``, the number of weight updates. Requests of equal keys, shapes
    and dtypes are stacked, ``[n, *B]``, and the policy is called once, without gradients, for single steps, with the
    exploration type of the caller. Recurrent states are entries of the requests. While a batch is computed, requests
    gather for the next one.

    A request whose policy raises fails alone, with the exception of the policy. If a client ends, others do not notice;
    if the server ends, the requests of its clients fail at once.

    Args:
        policy: A TensorDict module or function, or several by name. It is served itself with ``"thread"``: change its
            weights through the server, or between requests. The other back ends have a copy.
        policy_factory: Function that creates the policy where it is served, or several by name.
        service_backend: Place of the computation: ``"thread"`` for a thread of this process, ``"process"`` for a
            process, ``"ray"`` for an actor of Ray (``pip install "rl-collectors[ray]"``).
        service_backend_options: Arguments of the process (``start_method``, ``num_threads``, ``daemon``,
            ``shutdown_timeout``), or of the actor: ``ray_init_config``, and ``remote_config`` for its resources.
        max_batch_size: Number of requests of a batch at most.
        min_batch_size: Number of requests that a batch waits for, if they come within `timeout`.
        timeout: Seconds that a request waits for others of its batch; deadlines of replies are those of a client.
        device: Device of the policy; that of its parameters if None. Replies are on the device of their request.

    Raises:
        ArgumentError: If an argument is out of range, or the policy cannot be sent.
        MissingExtraError: If Ray is needed and not installed.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> policy = TensorDictModule(torch.nn.Linear(3, 2), ["observation"], ["action"])
        >>> with InferenceServer(policy, max_batch_size=8) as server:
        ...     client = server.client()
        ...     replies = [client.submit(TensorDict(observation=torch.ones(3))) for _ in range(4)]
        ...     reply = replies[3].result()
        >>> reply["action"].shape, reply["policy_version"].item()
        (torch.Size([2]), 0)
    """

    def __init__(
        self,
        policy: Any = None,
        *,
        policy_factory: Any = None,
        service_backend: str = "thread",
        service_backend_options: Mapping[str, Any] | None = None,
        max_batch_size: int = 64,
        min_batch_size: int = 1,
        timeout: float = 0.01,
        device: torch.device | str | None = None,
    ) -> None:
        self._backend = one_of(service_backend, "InferenceServer", "service_backend", BACKENDS)
        if (policy is None) == (policy_factory is None):
            raise ArgumentError("InferenceServer takes a policy or a policy_factory: it serves one of them")
        self._policies = _by_name(policy_factory if policy is None else policy)
        least = as_integer(min_batch_size, "InferenceServer", "min_batch_size", 1)
        most = as_integer(max_batch_size, "InferenceServer", "max_batch_size", least)
        wait = as_number(timeout, "InferenceServer", "timeout", least=0.0)
        settings = {"most": most, "least": least, "wait": wait}
        self._makes_policy = policy is None
        self._parts: dict[str, Any] = {"factory": self._makes_policy, "device": device, "settings": settings}
        self._options = dict(service_backend_options or {})
        known = _OPTIONS[service_backend]
        if unknown := sorted(self._options.keys() - known):
            raise ArgumentError(
                f"InferenceServer got the service_backend_options {', '.join(unknown)}; {service_backend!r} has"
                f" {', '.join(sorted(known)) or 'none'}"
            )
        self._place: Any = None
        self._versions: dict[str, int] = {}

    # ---- life

    def start(self) -> Self:
        """Start the thread, process or actor; ``with server:`` does it, too.

        Raises:
            RLError: If it runs already.
            WorkerError: If the policy cannot be created.
        """
        if self._place is not None:
            raise RLError("InferenceServer.start was called before: shutdown() ends the server")
        self._versions = dict.fromkeys(self._policies, 0)
        place = {"thread": Here, "process": Process, "ray": Actor}[self._backend]
        self._place = place(self._policies, self._parts, self._options)
        self._finish = weakref.finalize(self, self._place.close)
        try:
            self._contact, self._names = self._place.call("begin")
            self._place.map_weights(self._names)
        except BaseException:
            self.shutdown()
            raise
        return self

    def shutdown(self) -> None:
        """End the server after its batch; requests that wait fail. May be called twice."""
        if self._place is not None:
            self._finish()
            self._place = None

    def __enter__(self) -> Self:
        return self.start() if self._place is None else self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _running(self) -> Any:
        if self._place is None:
            raise RLError("this InferenceServer is not running: call start(), or use it as a context manager")
        return self._place

    def _named(self, model_id: str | None) -> str | None:
        """Return the name of the only policy for None."""
        return next(iter(self._policies)) if model_id is None and len(self._policies) == 1 else model_id

    # ---- clients

    def client(
        self, model_id: str | None = None, *, timeout: float | None = None, max_inflight: int = 128
    ) -> InferenceClient:
        """Return a client, for any thread, and to be sent to any process that reaches this machine.

        Args:
            model_id: Name of the policy for requests that name none; may be None if there is one policy.
            timeout: Seconds in which a request that names no other time is replied to; None for no limit.
            max_inflight: Number of requests without a reply that the client may have in each process; further ones
                wait.

        Raises:
            ArgumentError: If there is no policy of that name, or a limit is out of range.
            RLError: If the server is not running.
        """
        here = self._running()
        if model_id is not None:
            one_of(model_id, "InferenceServer.client", "model_id", self._policies)
        model_id = self._named(model_id)
        local = here.host.service if isinstance(here, Here) else None
        if local is not None and local.ended:  # in a fork it serves nothing: clients connect
            local = None
        return InferenceClient(self._contact, model_id, timeout, max_inflight, local)

    def stats(self) -> dict[str, float]:
        """Return the number of ``requests`` and ``batches`` that were served, and their ratio, ``avg_batch_size``."""
        return self._running().call("stats")

    # ---- weights

    def update_policy_weights_(
        self,
        policy_or_weights: Any = None,
        *,
        weights: Any = None,
        policy: Any = None,
        model_id: str | None = None,
        weights_dict: Mapping[str, Any] | None = None,
    ) -> None:
        """Use new weights from the next batch on, and count `policy_version`; no batch has a part of an update.

        Args:
            policy_or_weights: Policy of the same structure, its ``state_dict()``, or its parameters as a TensorDict.
                None for the policy that the server was given; for all of them if there are several.
            weights: Weights, the same as `policy_or_weights`.
            policy: Policy, the same as `policy_or_weights`.
            model_id: Name of the policy that gets them; may be None if there is one policy.
            weights_dict: Weights by the name of the policy.

        Raises:
            ArgumentError: If there is no such policy, or the weights do not fit it. Nothing is changed.
            RLError: If the server is not running.
            WorkerError: If the thread or actor has ended.
        """
        place = self._running()
        given: dict[str, Any] = {
            "weights": weights,
            "policy": policy,
            "model_id": model_id,
            "weights_dict": weights_dict,
        }
        sources = chosen_weights(policy_or_weights, **given, models=[*self._policies])
        new = {name: self._matching(name, source) for name, source in sources.items()}
        for name, found in new.items():
            self._versions[name] += 1
            place.publish(name, found, self._versions[name])

    def _matching(self, name: str, source: Any) -> Any:
        here = self._backend == "thread"
        own = None if self._makes_policy else self._policies[name]
        if here and (source is None or source is own):
            return None  # the policy that is served
        source = own if source is None else source
        if source is None or not self._names[name]:
            raise ArgumentError(
                f"InferenceServer.update_policy_weights_ has no weights for {name!r}: pass those of a policy with"
                " parameters"
            )
        served = self._place.host.policies[name].policy if here else None
        found = matching_weights(self._names[name], source, f"the policy {name!r} of the server", served)
        return source if here else found

    def get_policy_version(self, model_id: str | None = None) -> int:
        """Return the number of weight updates of a policy; `model_id` may be None if there is one.

        Raises:
            ArgumentError: If there is no such policy.
        """
        name: Any = self._named(model_id)
        return self._versions[one_of(name, "InferenceServer.get_policy_version", "model_id", self._policies)]

    @property
    def policy_version(self) -> int:
        """Number of weight updates, if there is one policy."""
        return self.get_policy_version()

    def __repr__(self) -> str:
        return (
            f"InferenceServer(policies={[*self._policies]}, service_backend={self._backend!r},"
            f" running={self._place is not None})"
        )


def _by_name(given: Any) -> dict[str, Any]:
    """Return policies, or functions that create them, by name; one alone is ``"policy"``."""
    several = dict(given) if isinstance(given, Mapping) else {"policy": given}
    if not several or not all(isinstance(name, str) and callable(one) for name, one in several.items()):
        raise ArgumentError(
            f"InferenceServer takes a policy, or policies by name, or functions that create them, got {given!r:.100}"
        )
    return several


_OPTIONS = {
    "thread": frozenset[str](),
    "process": frozenset({"start_method", "num_threads", "daemon", "shutdown_timeout"}),
    "ray": frozenset({"ray_init_config", "remote_config"}),
}


class InferenceClient:
    """Policy that an `InferenceServer` computes; its `client` creates it.

    It can be called by several threads, is inherited by forks, and can be pickled. Requests of the server's own process
    are passed on as they are; in any other process the client connects at its first request. A pickled client holds a
    secret that lets its owner connect; what is sent is not encrypted.

    Attributes:
        in_keys: Keys that the policy reads, if it declares them; a collector checks its environment against them.
        out_keys: Keys that it writes.
        states: Recurrent states that it carries; a collector puts them into the requests.
    """

    def __init__(
        self,
        contact: Contact,
        model_id: str | None,
        timeout: float | None,
        max_inflight: int,
        service: Service | None,
    ) -> None:
        self.timeout = None if timeout is None else as_number(timeout, "InferenceClient", "timeout", above=0.0)
        self.max_inflight = as_integer(max_inflight, "InferenceClient", "max_inflight", 1)
        self.model_id = model_id
        self._contact, self._service = contact, service
        self._prepare()

    def _prepare(self) -> None:
        model = self._contact.models.get(self.model_id or "")
        if model is not None and model.in_keys is not None:
            self.in_keys = list(model.in_keys)
        if model is not None and model.out_keys is not None:
            self.out_keys = list(model.out_keys)
        self.states = () if model is None else model.states
        self._link: Link | None = None
        self._connecting, self._free = Lock(), BoundedSemaphore(self.max_inflight)
        forget_in_forks(self)

    def forget(self) -> None:
        """Begin without a connection in a fork of the process."""
        if self._link is not None:
            self._link.forget()
        self._service = None
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("timeout", "max_inflight", "model_id", "_contact")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._service = None
        self._prepare()

    def __call__(
        self, tensordict: TensorDictBase, *, timeout: float | None = None, model_id: str | None = None
    ) -> TensorDictBase:
        """Send a request and wait for the reply.

        Args:
            tensordict: Entries that the policy reads; all are sent, and must be tensors.
            timeout: Seconds to wait; those of the client if None.
            model_id: Name of the policy; that of the client if None.

        Returns:
            A copy with what the policy has written, and ``policy_version``.

        Raises:
            WorkerError: If the policy raises, or the server has ended (`WorkerError.ended`).
            WorkerTimeoutError: If there is no reply in time.
            ArgumentError: If there is no policy of that name, or an entry is no tensor.
        """
        timeout = self.timeout if timeout is None else timeout
        limit = None if timeout is None else monotonic() + timeout
        future = self.submit(tensordict, timeout=timeout, model_id=model_id)
        try:
            return future.result(None if limit is None else max(0.0, limit - monotonic()))
        except BaseException as error:
            future.cancel()  # also after Ctrl-C: the reply is not needed
            if type(error) is not TimeoutError:
                raise
            if future.done() and not future.cancelled():  # it came in the meantime
                return future.result()
            raise timeout_error(model_id or self.model_id or "", timeout) from None

    def submit(
        self, tensordict: TensorDictBase, *, timeout: float | None = None, model_id: str | None = None
    ) -> Future[TensorDictBase]:
        """Send a request; wait only if `max_inflight` others have no reply.

        Args:
            tensordict: See `__call__`; its tensors must not change before the reply.
            timeout: Seconds after which the server drops the request; those of the client if None.
            model_id: Name of the policy; that of the client if None.

        Returns:
            Future whose result and exceptions are those of `__call__`.

        Raises:
            WorkerTimeoutError: If the others have no reply in time.
            WorkerError: If the server has ended.
            ArgumentError: If there is no policy of that name, or an entry is no tensor.
        """
        timeout = self.timeout if timeout is None else as_number(timeout, "InferenceClient", "timeout", above=0.0)
        model: Any = self.model_id if model_id is None else model_id
        one_of(model, "InferenceClient", "model_id", self._contact.models)
        leaves, groups = parts_of(tensordict)
        if not self._free.acquire(timeout=timeout):
            raise WorkerTimeoutError(
                f"InferenceClient: {self.max_inflight} requests had no reply within {timeout} s, and no more are sent:"
                " allow more time with timeout=, or more requests with client(max_inflight=)"
            )
        future: Future[TensorDictBase] = Future()
        free = self._free
        future.add_done_callback(lambda _: free.release())
        try:
            self._send(model, tensordict, leaves, groups, timeout, future)
        except BaseException:
            future.cancel()
            raise
        return future

    def _send(
        self,
        model: str,
        tensordict: TensorDictBase,
        leaves: dict[NestedKey, Tensor],
        groups: dict[NestedKey, torch.Size],
        timeout: float | None,
        future: Future[TensorDictBase],
    ) -> None:
        device = next(iter(leaves.values())).device if leaves else torch.device("cpu")

        def merged(outputs: dict[NestedKey, Tensor]) -> TensorDictBase:
            out = tensordict.copy()
            for key, leaf in outputs.items():
                out.set(key, leaf.to(device))
            return out

        def reply(outputs: dict[NestedKey, Tensor] | None, error: WorkerError | None) -> None:
            settle(future, None if outputs is None else partial(merged, outputs), error)

        mode, size, service = interaction_type(), tensordict.batch_size, self._service
        if service is not None:
            service.submit(
                Request(model, mode, size, groups, leaves, timeout, reply, future.set_running_or_notify_cancel)
            )
            return

        def received(outputs: dict[NestedKey, Tensor] | None, error: WorkerError | None) -> None:
            if future.set_running_or_notify_cancel():
                reply(outputs, error)

        arrays = {key: as_array(leaf) for key, leaf in leaves.items()}
        kind = None if mode is None else mode.value
        sizes = {key: tuple(inner) for key, inner in groups.items()}
        sent = monotonic() if self._contact.address[0] == LOCAL else None
        self._connected().submit((model, kind, tuple(size), sizes, arrays, timeout, sent), received)

    def _connected(self) -> Link:
        with self._connecting:
            if self._link is None or self._link.ended:
                self._link = Link(self._contact)
                self._end = weakref.finalize(self, self._link.close)
            return self._link

    def close(self) -> None:
        """End the connection, if there is one; requests without a reply fail."""
        if self._link is not None:
            self._link.close()

    def __repr__(self) -> str:
        return f"InferenceClient(model_id={self.model_id!r}, server={self._contact.address})"
