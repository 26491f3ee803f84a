"""New weights for engines in four phases: init, start, update, finish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, final

import torch
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.errors import ArgumentError, RLError
from rl.llm.engines import Engine

__all__ = ["EngineReceiver", "WeightPush", "WeightReceiver", "WeightStore"]


class WeightReceiver(Protocol):
    """Side of an engine in a push of weights; vLLM's weight transfer has these phases.

    While it is paused the engine samples nothing; responses in flight wait.
    """

    def init(self, layout: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        """Prepare for weights of these names, shapes and dtypes; called once."""

    def pause(self) -> None:
        """Stop sampling."""

    def start(self, version: int) -> None:
        """Begin the weights of a version."""

    def update(self, weights: Mapping[str, Tensor]) -> None:
        """Take some of the weights."""

    def finish(self) -> None:
        """Make the weights current."""

    def resume(self) -> None:
        """Continue sampling."""


class WeightStore(Protocol):
    """Versioned store of weights, such as ``SharedWeights`` of rl-collectors."""

    @property
    def version(self) -> int:
        """Version of the current weights."""
        ...

    def acquire(self, weights: Mapping[str, Tensor], reader: int, known: int = 0) -> int:
        """Copy the current weights into `weights` unless they are of version `known`; return their version."""
        ...


_NEXT = {"new": ("init",), "ready": ("start",), "updating": ("update", "finish")}


@final
class WeightPush:
    """State machine of a push of weights to an engine; a phase in the wrong order raises `RLError`.

    | state | phase | next state |
    |---|---|---|
    | new | `init` | ready |
    | ready | `start` (pauses the engine) | updating |
    | updating | `update`, any number of times | updating |
    | updating | `finish` (resumes the engine) | ready |

    Args:
        receiver: Side of the engine.

    Example:
        >>> from rl.llm import ScriptedEngine
        >>> engine = ScriptedEngine([[1]], stop_tokens=[1])
        >>> push = WeightPush(EngineReceiver(engine))
        >>> push.push({"w": torch.ones(2)}, version=1)
        >>> engine.version, engine.weights["w"].tolist()
        (1, [1.0, 1.0])
        >>> push.finish()
        Traceback (most recent call last):
        ...
        rl.core.errors.RLError: WeightPush: finish is not the next phase: the state is ready, call start
    """

    def __init__(self, receiver: WeightReceiver) -> None:
        self.receiver, self.state, self.version = receiver, "new", 0
        self._layout: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        self._sent: set[str] = set()
        self._next = 0

    def _enter(self, phase: str) -> None:
        if phase not in _NEXT[self.state]:
            expected = " or ".join(_NEXT[self.state])
            raise RLError(f"WeightPush: {phase} is not the next phase: the state is {self.state}, call {expected}")

    def init(self, weights: Mapping[str, Tensor]) -> None:
        """Tell the engine names, shapes and dtypes of the weights.

        Args:
            weights: Weights by name; their values are not read.
        """
        self._enter("init")
        layout = {name: (tuple(one.shape), one.dtype) for name, one in weights.items()}
        self.receiver.init(layout)
        self._layout, self.state = layout, "ready"

    def start(self, version: int) -> None:
        """Pause the engine, and begin a version.

        Args:
            version: Version, above the present one.

        Raises:
            ArgumentError: If the version is not above the present one.
        """
        self._enter("start")
        as_integer(version, "WeightPush", "version", least=self.version + 1)
        self.receiver.pause()
        try:
            self.receiver.start(version)
        except BaseException:
            self.receiver.resume()
            raise
        self._next, self._sent, self.state = version, set(), "updating"

    def update(self, weights: Mapping[str, Tensor]) -> None:
        """Send some of the weights.

        Args:
            weights: Weights by name, each sent once.

        Raises:
            ArgumentError: If a name is unknown or was sent before, or a shape or dtype is another one.
        """
        self._enter("update")
        for name, one in weights.items():
            if name not in self._layout or name in self._sent:
                raise ArgumentError(f"WeightPush: {name} {'was sent before' if name in self._sent else 'is unknown'}")
            if (tuple(one.shape), one.dtype) != self._layout[name]:
                shape, dtype = self._layout[name]
                raise ArgumentError(
                    f"WeightPush: {name} must be {dtype} {list(shape)}, got {one.dtype} {list(one.shape)}"
                )
        self.receiver.update(weights)
        self._sent |= weights.keys()

    def finish(self) -> None:
        """Make the version current, and resume the engine."""
        self._enter("finish")
        missing = sorted(self._layout.keys() - self._sent)
        if missing:
            raise RLError(f"WeightPush: {len(missing)} weights were not sent, among them {missing[0]}. Call update")
        self.receiver.finish()
        self.version, self.state = self._next, "ready"
        self.receiver.resume()

    def push(self, weights: Mapping[str, Tensor], version: int, *, bucket_bytes: int = 1 << 28) -> None:
        """Go through all phases.

        Args:
            weights: Weights by name.
            version: Version, above the present one.
            bucket_bytes: Number of bytes that are sent at once, at least one weight.
        """
        if self.state == "new":
            self.init(weights)
        self.start(version)
        for part in _buckets(weights, bucket_bytes):
            self.update(part)
        self.finish()

    def push_from(self, store: WeightStore, weights: Mapping[str, Tensor], reader: int) -> bool:
        """Push the weights of a store if they are newer; return whether they were.

        Args:
            store: Store.
            weights: Tensors into which the weights are copied first.
            reader: Number of the reader.
        """
        version = store.acquire(weights, reader, self.version)
        if version <= self.version:
            return False
        self.push(weights, version)
        return True


def _buckets(weights: Mapping[str, Tensor], size: int) -> Iterable[dict[str, Tensor]]:
    part: dict[str, Tensor] = {}
    used = 0
    for name, one in weights.items():
        if part and used + one.nbytes > size:
            yield part
            part, used = {}, 0
        part[name] = one
        used += one.nbytes
    if part:
        yield part


@final
class EngineReceiver:
    """Receiver for an engine of this process: the weights become current together, in `Engine.load_weights`.

    A pause is only recorded, for such an engine samples in calls.

    Args:
        engine: Engine.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.paused = False
        self._weights: dict[str, Tensor] = {}
        self._version = 0

    def init(self, layout: Mapping[str, Any]) -> None:
        pass  # the engine knows its weights

    def pause(self) -> None:
        self.paused = True

    def start(self, version: int) -> None:
        self._version, self._weights = version, {}

    def update(self, weights: Mapping[str, Tensor]) -> None:
        self._weights |= {name: one.detach().clone() for name, one in weights.items()}

    def finish(self) -> None:
        self.engine.load_weights(self._weights, self._version)
        self._weights = {}

    def resume(self) -> None:
        self.paused = False
