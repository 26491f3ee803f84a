"""Inner loop whose steps are replayed from CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from rl.collectors._assemble import check_keys
from rl.collectors._loops.leaf import LeafLoop
from rl.collectors._loops.leaves import LeafAct, LeafStep
from rl.core.errors import BackendError
from rl.core.interfaces import Leaves
from rl.core.workers import write_leaves

__all__ = ["RecordedLoop"]


class _Steps(NamedTuple):
    """A chunk of steps.

    Args:
        roots: Entries of the steps.
        nexts: Entries under ``next``.
        last: Root of the step that follows.
    """

    roots: list[Leaves]
    nexts: list[Leaves]
    last: Leaves


class _Graph(NamedTuple):
    """A recorded chunk of steps.

    Args:
        inputs: Memory that the graph reads the first root from.
        steps: Memory that each replay overwrites.
        replay: Function that takes the steps.
    """

    inputs: Leaves
    steps: _Steps
    replay: Callable[[], None]


class RecordedLoop:
    """`LeafLoop` that replays chunks of steps from CUDA graphs: policy, environment and resets.

    A chunk of a length that comes for the first time is run step by step, on the stream of the recording, so that all
    kernels are loaded; from the second time on it is replayed. The results are those of `LeafLoop`. What Python does in
    a step happens only when it is recorded: counters of a policy or an environment that are no tensors stand still.

    Args:
        loop: The loop, with ``asks=False``.
        device: CUDA device of all entries.
        generators: Generators that the environment draws from, besides torch's own.
        who: Names of environment and policy, for messages.
    """

    def __init__(self, loop: LeafLoop, device: torch.device, generators: Iterable[torch.Generator], who: str) -> None:
        self._loop, self._device, self._who = loop, device, who
        self._generators = tuple(generators)
        self._stream: Any = None
        self._seen: set[tuple[LeafAct, int]] = set()
        self._graphs: dict[tuple[LeafAct, int], _Graph] = {}

    @property
    def root(self) -> Leaves | None:
        """Root of the next step; None for a reset."""
        return self._loop.root

    @root.setter
    def root(self, leaves: Leaves | None) -> None:
        self._loop.root = leaves

    def run(self, steps: int, act: LeafAct, step: LeafStep, roots: list[Leaves], nexts: list[Leaves]) -> None:
        """Take `steps` steps and append their entries to `roots` and `nexts`; the next call overwrites them.

        Args:
            steps: Number of steps.
            act: Policy.
            step: Step of the environment.
            roots: List for one dict a step: observations, flags, policy outputs.
            nexts: List for one dict a step: entries under ``next``.

        Raises:
            BackendError: If the steps cannot be recorded.
        """
        key, root = (act, steps), self._loop.root
        if root is None or key not in self._seen:  # a reset of all elements is not part of a recording
            if root is not None:
                self._seen.add(key)
            self._aside(lambda: self._loop.run(steps, act, step, roots, nexts))
            return
        if key not in self._graphs:
            self._graphs[key] = self._record(root, steps, act, step)
        graph = self._graphs[key]
        check_keys(graph.inputs, root, "Collector(cudagraph=True)")
        write_leaves(graph.inputs, root, "Collector(cudagraph=True)")
        self._loop.root = None  # after an exception the environment is at an unknown step
        graph.replay()
        roots.extend(graph.steps.roots)
        nexts.extend(graph.steps.nexts)
        self._loop.root = {name: leaf.clone() for name, leaf in graph.steps.last.items()}

    def _record(self, root: Leaves, steps: int, act: LeafAct, step: LeafStep) -> _Graph:
        inputs = {name: leaf.clone() for name, leaf in root.items()}

        def take() -> _Steps:
            roots: list[Leaves] = []
            nexts: list[Leaves] = []
            self._loop.root = inputs.copy()
            self._loop.run(steps, act, step, roots, nexts)
            assert self._loop.root is not None
            return _Steps(roots, nexts, self._loop.root)

        try:
            recorded, replay = record(take, self._device, self._generators)
        except RuntimeError as error:
            raise BackendError(
                f"the steps of {self._who} cannot be recorded in a CUDA graph ({_first_line(error)}): one of the two"
                " reads a value of the device, or draws from a generator that the environment's `generators` do not"
                " list; use cudagraph=False, or cudagraph_policy=True if it is the environment"
            ) from error
        return _Graph(inputs, recorded, replay)

    def _aside(self, call: Callable[[], None]) -> None:
        """Call on a stream of the loop's own, ordered with the current one."""
        if self._device.type != "cuda":
            call()
            return
        here = torch.cuda.current_stream(self._device)
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            call()
        here.wait_stream(self._stream)


def record(
    call: Callable[[], _Steps], device: torch.device, generators: Iterable[torch.Generator]
) -> tuple[_Steps, Callable[[], None]]:
    """Record what a call launches, without running it.

    Args:
        call: Function that launches work on the device alone.
        device: The device.
        generators: Generators that it draws from, besides torch's own.

    Returns:
        The result of the call, memory without its values, and a function that computes them.
    """
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.device(device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = call()
    return result, graph.replay


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
