"""The GPU as the benchmark sees it: its clock, streams and graphs, and what its floors are made of.

`Gpu` is all that is asked of CUDA; a test puts a computer without one in its place.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Call = Callable[[int], object]
"""Something to be timed; gets the number of the call."""

_AHEAD = 60  # calls of up to ten launches: a device takes about a thousand launches before the host has to wait
_SLOW = 0.25  # seconds of a call that is timed once


class Gpu:
    """A CUDA device.

    Args:
        device: with its number.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def says(self) -> str:
        """Name, and versions of torch and CUDA."""
        return f"{torch.cuda.get_device_name(self.device)}, torch {torch.__version__}, CUDA {torch.version.cuda}"

    def cache(self) -> int:
        """Bytes of the L2 cache."""
        found = torch.cuda.get_device_properties(self.device)
        return getattr(found, "L2_cache_size", Machine.cache)  # older versions of torch do not say

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def event(self) -> Any:
        """With `record()`, `query()` and `elapsed_time(other)` in milliseconds."""
        return torch.cuda.Event(enable_timing=True)

    def hold(self, microseconds: float) -> None:
        """Keep the device busy, so that calls wait in line while the host makes more."""
        torch.cuda._sleep(int(2000 * microseconds))  # noqa: SLF001  in cycles, of which there are at most about 2000

    def capture(self, call: Callable[[], object]) -> Callable[[], object]:
        """The call as a CUDA graph: what replays it."""
        with self.aside():
            call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Another stream: it waits for the current one, which waits for it at the end."""
        here, side = torch.cuda.current_stream(self.device), torch.cuda.Stream(self.device)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            yield
        here.wait_stream(side)

    def allocated(self) -> int:
        """Bytes of memory in use by torch."""
        return torch.cuda.memory_allocated(self.device)

    def forget(self) -> None:
        """Give back memory that is in use no more."""
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class Time:
    """Microseconds of one call.

    Args:
        gpu: between events around many calls.
        host: until the call returns.
        cpu: of the thread that calls.
        spread: from the tenth to the ninetieth of a hundred rounds, as a part of `gpu`.
    """

    gpu: float
    host: float
    cpu: float
    spread: float = 0.0

    @property
    def whole(self) -> float:
        """What a program sees that makes one call after another."""
        return max(self.gpu, self.host)


def once(gpu: Gpu, call: Call, count: int, *, ahead: float) -> Time:
    """The mean of `count` calls.

    Args:
        gpu: where they run.
        call: what is timed.
        count: how many calls.
        ahead: microseconds that the device is kept busy before, so that all calls wait when the first one starts.
    """
    began, ended = gpu.event(), gpu.event()
    if ahead:
        gpu.hold(ahead)
    began.record()
    start, used = time.perf_counter(), time.thread_time()
    for i in range(count):
        call(i)
    host, cpu = time.perf_counter() - start, time.thread_time() - used
    ended.record()
    gpu.synchronize()
    return Time(1e3 * began.elapsed_time(ended) / count, 1e6 * host / count, 1e6 * cpu / count)


def middle(times: list[Time]) -> Time:
    """Medians, and how far the rounds are apart."""
    gpu, host, cpu = ([getattr(each, name) for each in times] for name in ("gpu", "host", "cpu"))
    most = statistics.median(gpu)
    if len(gpu) < 2 or not most:
        return Time(most, statistics.median(host), statistics.median(cpu))
    tenths = statistics.quantiles(gpu, n=10, method="inclusive")
    return Time(most, statistics.median(host), statistics.median(cpu), (tenths[-1] - tenths[0]) / most)


def in_turns(gpu: Gpu, calls: Mapping[str, tuple[Call, bool]], *, rounds: int, seconds: float) -> dict[str, Time]:
    """Medians of each, all of them in turns.

    Args:
        gpu: where they run.
        calls: by name; and whether a call has few launches and never waits, so that calls may wait in line.
        rounds: of each.
        seconds: for each in each round.
    """
    plans: dict[str, tuple[int, float, int]] = {}
    for name, (call, few) in calls.items():
        call(0)
        gpu.synchronize()
        start = time.perf_counter()
        call(1)
        host = time.perf_counter() - start
        gpu.synchronize()
        whole = time.perf_counter() - start
        count = max(1 if whole > _SLOW else 3, min(_AHEAD if few else 200, int(seconds / whole)))
        plans[name] = count, 1e6 * (1.5 * count * host + 1e-4) if few else 0.0, 1 if whole > _SLOW else rounds
    found: dict[str, list[Time]] = {name: [] for name in calls}
    for number in range(rounds):
        for name, (call, _) in calls.items():
            count, ahead, most = plans[name]
            if number < most:
                found[name].append(once(gpu, call, count, ahead=ahead))
    return {name: middle(times) for name, times in found.items()}


@dataclass(frozen=True)
class Machine:
    """What a floor is made of, in microseconds and bytes.

    Args:
        gap: from one small kernel to the next, in a stream.
        graph_gap: the same in a graph.
        bandwidth: bytes a microsecond that a copy reads and writes.
        near: of a load that waits for the L2 cache.
        far: of one that waits for the memory behind it.
        cache: bytes of the L2 cache.
        chased: whether `near` and `far` were measured here.
    """

    gap: float
    graph_gap: float
    bandwidth: float
    near: float = 0.22  # 400 cycles; without Triton nobody measures it
    far: float = 0.45
    cache: int = 60 * 2**20
    chased: bool = False


def ring(lines: int, device: torch.device) -> Tensor:
    """A walk through all of `lines` lines of 128 bytes by chance, int64: each holds where the next one begins."""
    order = torch.randperm(lines, device=device)
    places = torch.zeros(16 * lines, dtype=torch.int64, device=device)
    places[16 * order] = 16 * order.roll(-1)
    return places


def chase(gpu: Gpu, follow: Callable[[Tensor, Tensor, int], object], size: int, seconds: float) -> float:
    """Microseconds of a load that waits for the one before, over `size` bytes."""
    places, at = ring(max(2, size // 128), gpu.device), torch.zeros(1, dtype=torch.int64, device=gpu.device)
    few, many = 500, 4500
    times = in_turns(
        gpu,
        {"few": (lambda _: follow(places, at, few), True), "many": (lambda _: follow(places, at, many), True)},
        rounds=3,
        seconds=seconds,
    )
    return (times["many"].gpu - times["few"].gpu) / (many - few)


def measured(
    gpu: Gpu, follow: Callable[[Tensor, Tensor, int], object] | None, *, seconds: float, large: int
) -> Machine:
    """The floors' ingredients.

    Args:
        gpu: what is measured.
        follow: takes steps on a ring, as `prio_kernels.follow`; None where there is no Triton.
        seconds: for each of them.
        large: bytes that are copied.
    """
    small = torch.zeros(32, device=gpu.device)
    one = torch.zeros(large, dtype=torch.uint8, device=gpu.device)
    other = torch.empty_like(one)

    def many() -> None:
        for _ in range(100):
            small.add_(1)

    replay = gpu.capture(many)
    times = in_turns(
        gpu,
        {
            "gap": (lambda _: small.add_(1), True),
            "graph": (lambda _: replay(), True),
            "copy": (lambda _: other.copy_(one), True),
        },
        rounds=3,
        seconds=seconds,
    )
    found = times["gap"].gpu, times["graph"].gpu / 100, 2 * large / times["copy"].gpu
    cache = gpu.cache()
    if follow is None:
        return Machine(*found, cache=cache)
    near, far = (chase(gpu, follow, size, seconds) for size in (cache // 4, min(16 * cache, large)))
    return Machine(*found, near, far, cache, chased=True)
