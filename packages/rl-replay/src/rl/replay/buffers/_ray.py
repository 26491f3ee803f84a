"""`RayReplayBuffer`: a replay buffer in an actor of Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, Self

from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ArgumentError, RLError, WorkerError, WorkerTimeoutError
from rl.core.workers import import_ray, packed, start_ray, unpacked
from rl.replay.buffers._tensordict import TensorDictReplayBuffer

_ray = partial(import_ray, "RayReplayBuffer", "rl-replay[ray]")


class RayReplayBuffer:
    """A replay buffer in an actor of Ray (``pip install "rl-replay[ray]"``), for processes on one machine or many.

    It has the methods of the buffer, which raise the errors of the buffer. Batches travel as NumPy arrays through Ray's
    object store. The object can be sent to other actors and tasks of Ray, which then use the same buffer.

    Args:
        storage: Empty storage, or a function that creates it, which the actor calls.
        sampler: Sampler, or a function that creates it.
        writer: Writer, or a function that creates it.
        replay_buffer_cls: Class of the buffer.
        ray_init_config: Arguments of ``ray.init``, such as ``{"address": "auto"}`` for a running cluster. Ray is
            started on this machine if it is not running.
        remote_config: Resources of the actor, such as ``{"num_cpus": 1}``.
        timeout: Seconds to wait for an answer before an error is raised; None for no limit.
        options: Further arguments of the buffer: ``batch_size``, ``prefetch``, ``transform`` and others. Folders, as
            those of `dumps`, are of the machine of the actor.

    Raises:
        MissingExtraError: If Ray is not installed.
        ArgumentError: If an argument cannot be sent, or the buffer rejects it.

    Example:
        >>> import torch
        >>> from rl.replay import LazyTensorStorage
        >>> from tensordict import TensorDict
        >>> with RayReplayBuffer(storage=LazyTensorStorage(1000), batch_size=4) as buffer:  # doctest: +SKIP
        ...     _ = buffer.extend(TensorDict(x=torch.arange(10), batch_size=[10]))
        ...     buffer.sample().shape
        torch.Size([4])
    """

    def __init__(
        self,
        *,
        storage: Any = None,
        sampler: Any = None,
        writer: Any = None,
        replay_buffer_cls: type = TensorDictReplayBuffer,
        ray_init_config: Mapping[str, Any] | None = None,
        remote_config: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        ray = _ray()
        parts = {"storage": storage, "sampler": sampler, "writer": writer}
        try:
            made = ray.cloudpickle.dumps((replay_buffer_cls, parts, options))
        except Exception as error:  # whatever an object raises
            raise ArgumentError(
                f"RayReplayBuffer: an argument cannot be sent to the actor ({error}). Pass functions that make storage,"
                " sampler and writer, and transforms without open files or locks"
            ) from error
        self._timeout = timeout
        self._owns_ray = not ray.is_initialized()
        self._actor: Any = None
        self._owns_actor = True
        try:
            if self._owns_ray:
                start_ray(ray, ray_init_config, "RayReplayBuffer")
            resources = {"num_cpus": 1, **(remote_config or {})}
            self._actor = ray.remote(**resources)(_Actor).remote()
            self._call("make", made)
        except BaseException:
            self.shutdown()
            raise

    def add(self, data: Any) -> Tensor:
        """Write one row; see `ReplayBuffer.add`."""
        return self._call("call", "add", data)

    def extend(self, data: Any) -> Tensor:
        """Write the rows of a batch; see `ReplayBuffer.extend`."""
        return self._call("call", "extend", data)

    def sample(self, batch_size: int | None = None, *, return_info: bool = False, include_info: bool = False) -> Any:
        """Sample a batch; see `ReplayBuffer.sample`."""
        return self._call("call", "sample", batch_size, return_info=return_info or include_info)

    def update_priority(self, index: Tensor, priority: Tensor) -> None:
        """Set priorities; see `ReplayBuffer.update_priority`."""
        self._call("call", "update_priority", index, priority)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Update priorities from a sample; see `TensorDictReplayBuffer.update_tensordict_priority`."""
        self._call("call", "update_tensordict_priority", data)

    def append_transform(self, transform: Callable[[Any], Any], *, invert: bool = False) -> Self:
        """Apply a function, which is sent to the actor; see `ReplayBuffer.append_transform`."""
        self._call("transform", _ray().cloudpickle.dumps(transform), invert)
        return self

    def empty(self) -> None:
        """Remove all rows; see `ReplayBuffer.empty`."""
        self._call("call", "empty")

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the buffer; see `ReplayBuffer.state_dict`."""
        return self._call("call", "state_dict")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; see `ReplayBuffer.load_state_dict`."""
        self._call("call", "load_state_dict", dict(state))

    def dumps(self, path: Any) -> None:
        """Write a checkpoint into a folder of the actor's machine; see `ReplayBuffer.dumps`."""
        self._call("call", "dumps", str(path))

    def loads(self, path: Any) -> None:
        """Continue from the checkpoint in a folder of the actor's machine; see `ReplayBuffer.loads`."""
        self._call("call", "loads", str(path))

    save = dumps
    load = loads

    @property
    def batch_size(self) -> int | None:
        """Rows of a batch."""
        return self._call("attribute", "batch_size")

    @property
    def write_count(self) -> int:
        """Number of rows written; see `ReplayBuffer.write_count`."""
        return self._call("attribute", "write_count")

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call another method of the buffer, by name."""
        return self._call("call", name, *args, **kwargs)

    def shutdown(self) -> None:
        """End the actor, and Ray if this object started it. May be called twice; in other processes it does nothing."""
        if not self._owns_actor:
            return
        actor, self._actor = self._actor, None
        ray = _ray()
        if actor is not None and ray.is_initialized():
            with suppress(Exception):  # one that has ended needs no end
                ray.kill(actor)
        if self._owns_ray:
            self._owns_ray = False
            ray.shutdown()

    close = shutdown

    def __len__(self) -> int:
        return self._call("call", "__len__")

    def __iter__(self) -> Iterator[Any]:
        """Batches of one new pass; see `ReplayBuffer.__iter__`."""
        self._call("iterate")
        while (batch := self._call("following")) is not None:
            yield batch[0]

    def __getitem__(self, index: Any) -> Any:
        return self._call("call", "__getitem__", index)

    def __setitem__(self, index: Any, data: Any) -> None:
        self._call("call", "__setitem__", index, data)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"RayReplayBuffer has no {name!r}; its buffer is in another process: call(name, ...) calls a method there"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (self._actor, self._timeout)

    def __repr__(self) -> str:
        return f"RayReplayBuffer({self._call('text') if self._actor is not None else 'shut down'})"

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self._actor is None:
            raise RLError("this RayReplayBuffer was shut down: create a new one")
        ray = _ray()
        reference = getattr(self._actor, method).remote(*map(packed, args), **kwargs)
        try:
            return unpacked(ray.get(reference, timeout=self._timeout))
        except ray.exceptions.GetTimeoutError as error:
            raise WorkerTimeoutError(
                f"RayReplayBuffer: no answer of the actor within {self._timeout} s. Allow more with timeout=, or"
                " ask for fewer resources with remote_config="
            ) from error
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayActorError as error:
            raise WorkerError(f"RayReplayBuffer: the actor has ended, and its rows are lost: {error}") from error


class _Actor:
    """A buffer in an actor."""

    _buffer: Any
    _iterator: Iterator[Any] = iter(())

    def make(self, made: bytes) -> None:
        """Create the buffer; an error of a constructor would end the actor."""
        kind, parts, options = _ray().cloudpickle.loads(made)
        members = {"storage": "get", "sampler": "sample", "writer": "claim"}
        for name, part in parts.items():
            # A class has the methods, too, and is one of those that are called.
            is_maker = callable(part) and (isinstance(part, type) or not hasattr(part, members[name]))
            options[name] = part() if is_maker else part
        self._buffer = kind(**options)

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the buffer."""
        return packed(getattr(self._buffer, name)(*map(unpacked, args), **kwargs))

    def transform(self, made: bytes, invert: bool) -> None:  # noqa: FBT001  internal
        """Append a transform."""
        self._buffer.append_transform(_ray().cloudpickle.loads(made), invert=invert)

    def attribute(self, name: str) -> Any:
        """Return an attribute of the buffer."""
        return getattr(self._buffer, name)

    def iterate(self) -> None:
        """Begin a pass."""
        self._iterator = iter(self._buffer)

    def following(self) -> Any:
        """Return the next batch of the pass in a tuple; None at its end."""
        for batch in self._iterator:
            return packed((batch,))
        return None

    def text(self) -> str:
        """Return the buffer as text."""
        return repr(self._buffer)


def _attached(actor: Any, timeout: float | None) -> RayReplayBuffer:
    """Return the buffer of an actor, in another process."""
    buffer = RayReplayBuffer.__new__(RayReplayBuffer)
    buffer._actor, buffer._timeout = actor, timeout  # noqa: SLF001  a constructor
    buffer._owns_actor = buffer._owns_ray = False  # noqa: SLF001  a constructor
    return buffer


RemoteTensorDictReplayBuffer = RayReplayBuffer
