"""Seconds spent in parts of a collector, and traces of `torch.profiler` of single batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from rl.core.errors import ArgumentError
from rl.core.profiling import profiled

_ACTIVITIES = {"cpu": ProfilerActivity.CPU, "cuda": ProfilerActivity.CUDA}


@dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """What `enable_profile` records.

    Args:
        workers: Numbers of the workers that are recorded; all if None.
        num_rollouts: Batches until recording ends, those of the warm-up included.
        warmup_rollouts: Batches at the beginning that are not recorded.
        save_path: Chrome trace (``chrome://tracing``, Perfetto); ``{worker_idx}`` is the number of the worker.
        activities: Activities that are recorded: ``"cpu"`` and ``"cuda"``, or `torch.profiler.ProfilerActivity`; "cuda"
            is left out without a GPU.
        record_shapes: Whether to record the shapes of the inputs of operators.
        profile_memory: Whether to record allocations.
        with_stack: Whether to record source lines.
        with_flops: Whether to count floating-point operations.
        on_trace_ready: Function that is called with the profile instead of writing the trace.

    Raises:
        ArgumentError: If an argument is out of range.

    Example:
        >>> ProfileConfig(num_rollouts=5, warmup_rollouts=2).path(3)
        PosixPath('trace_3.json')
    """

    workers: Iterable[int] | None = None
    num_rollouts: int = 3
    warmup_rollouts: int = 1
    save_path: str | Path = "trace_{worker_idx}.json"
    activities: Iterable[str | ProfilerActivity] = ("cpu", "cuda")
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    on_trace_ready: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_rollouts < self.num_rollouts:
            raise ArgumentError(
                f"ProfileConfig got num_rollouts={self.num_rollouts} and warmup_rollouts={self.warmup_rollouts}: the"
                " warm-up is part of the rollouts, and one of them is recorded at least"
            )
        unknown = [one for one in self.activities if one not in (*_ACTIVITIES, *_ACTIVITIES.values())]
        if unknown:
            raise ArgumentError(f"ProfileConfig got activities {unknown}; they are 'cpu' and 'cuda'")

    @classmethod
    def of(cls, config: ProfileConfig | None, settings: dict[str, Any]) -> ProfileConfig:
        """Return the arguments of `enable_profile`, a config or its settings, as a config."""
        if config is not None and settings:
            raise ArgumentError(f"enable_profile takes a config or settings, got both: {', '.join(settings)}")
        return cls(**settings) if config is None else config

    def path(self, worker: int) -> Path:
        """File of the trace of a worker."""
        return Path(str(self.save_path).format(worker_idx=worker))


class Clock:
    """Sum of the seconds spent in named calls.

    On a CUDA device these are the seconds of the launches: nothing is synchronized.

    Example:
        >>> clock = Clock()
        >>> clock.timed("env", lambda x: x + 1)(1)
        2
        >>> list(clock.seconds)
        ['env']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, timed under `name`."""
        seconds = self.seconds
        seconds.setdefault(name, 0.0)

        def call(*arguments: Any) -> Any:
            start = perf_counter()
            with profiled(name):
                result = function(*arguments)
            seconds[name] += perf_counter() - start
            return result

        return call


class Ranges:
    """Named ranges of a trace timed calls."""

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` in a range `name`."""

        def call(*arguments: Any) -> Any:
            with record_function(name):
                return function(*arguments)

        return call


class BatchProfiler(Ranges):
    """Records some batches of a collector, and writes the trace after the last one.

    Args:
        config: Settings of the recording.
        worker: Number of the worker.
    """

    def __init__(self, config: ProfileConfig, worker: int) -> None:
        self._config, self._worker = config, worker
        self._count = 0
        self._profile: Any = None

    @property
    def finished(self) -> bool:
        """Whether all batches were recorded."""
        return self._count >= self._config.num_rollouts

    @contextmanager
    def batch(self) -> Generator[None]:
        """Record the batch that is collected inside, if its turn has come."""
        config = self._config
        if self._count == config.warmup_rollouts:
            wanted = {_ACTIVITIES[one] if isinstance(one, str) else one for one in config.activities}
            if not torch.cuda.is_available():
                wanted.discard(ProfilerActivity.CUDA)
            self._profile = profile(
                activities=sorted(wanted, key=str),
                record_shapes=config.record_shapes,
                profile_memory=config.profile_memory,
                with_stack=config.with_stack,
                with_flops=config.with_flops,
            )
            self._profile.__enter__()
        try:
            with record_function("collect"):
                yield
        finally:
            self._count += 1
            if self._profile is not None and self.finished:
                self._end()

    def _end(self) -> None:
        found, self._profile = self._profile, None
        found.__exit__(None, None, None)
        if self._config.on_trace_ready is not None:
            self._config.on_trace_ready(found)
            return
        path = self._config.path(self._worker)
        path.parent.mkdir(parents=True, exist_ok=True)
        found.export_chrome_trace(str(path))
