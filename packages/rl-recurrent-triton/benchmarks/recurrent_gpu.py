"""What times are made of: clocks, memory, graphs, and numbers of the device that bound a recurrence from below."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Call = Callable[[], object]
_SLOW = 1.0  # seconds of a call that is timed once


@dataclass(frozen=True)
class Place:
    """Where it runs: a GPU, or a CPU on which Triton interprets, to try the benchmark itself."""

    device: torch.device

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def says(self) -> str:
        if not self.is_gpu:
            return f"Triton's interpreter on a CPU: all times are without meaning. torch {torch.__version__}"
        name, capability = torch.cuda.get_device_name(self.device), torch.cuda.get_device_capability(self.device)
        return f"{name} ({capability[0]}.{capability[1]}), torch {torch.__version__}, CUDA {torch.version.cuda}"

    def forget(self) -> None:
        gc.collect()
        if self.is_gpu:
            torch.cuda.empty_cache()

    def peak(self, call: Call) -> int:
        """Bytes that a call needs at most, beyond what is there before."""
        if not self.is_gpu:
            return 0
        call()
        self.synchronize()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        call()
        self.synchronize()
        return torch.cuda.max_memory_allocated(self.device) - before

    def captured(self, call: Call) -> Call | None:
        """A call as a CUDA graph; None on a CPU."""
        if not self.is_gpu:
            return None
        here, side = torch.cuda.current_stream(self.device), torch.cuda.Stream(self.device)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            for _ in range(2):
                call()
        here.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay


def interleave(place: Place, calls: Mapping[str, Call], *, rounds: int, seconds: float) -> dict[str, float]:
    """Milliseconds of a call among calls one after another, host included: medians of interleaved rounds.

    Args:
        place: where.
        calls: by name.
        rounds: of each.
        seconds: for each in each round; a call that takes longer than a second is timed once.
    """
    counts: dict[str, int] = {}
    for name, call in calls.items():
        call()
        place.synchronize()
        start = time.perf_counter()
        call()
        place.synchronize()
        took = time.perf_counter() - start
        counts[name] = 0 if took > _SLOW or not seconds else max(3, min(200, int(seconds / took)))
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name, call in calls.items():
            count = counts[name] or 1
            if counts[name] or not number:
                start = time.perf_counter()
                for _ in range(count):
                    call()
                place.synchronize()
                taken[name].append(1e3 * (time.perf_counter() - start) / count)
    return {name: statistics.median(times) for name, times in taken.items()}


def machine(place: Place, *, seconds: float) -> dict[str, float]:
    """Copy bandwidth in GB/s, and microseconds: between kernels in a stream and in a graph."""
    if not place.is_gpu:
        return {}
    small, large = torch.zeros(1, device=place.device), torch.zeros(2**28, device=place.device)
    other, kernels = torch.empty_like(large), 1000

    def many() -> None:
        for _ in range(kernels):
            small.add_(1)

    replay = place.captured(many)
    calls: dict[str, Call] = {"copy": lambda: other.copy_(large), "stream": many}
    calls |= {"graph": replay} if replay else {}
    times = interleave(place, calls, rounds=5, seconds=seconds)
    return {
        "copy, GB/s": 2 * 4 * large.numel() / times["copy"] / 1e6,
        "launch in a stream, us": times["stream"],  # a thousand of them in milliseconds
        "launch in a graph, us": times["graph"],
    }
