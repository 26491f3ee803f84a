"""The tree on a GPU against the tree on the CPU with its transfers, torch operations on the GPU, and TorchRL's tree.

``python benchmarks/tree.py [--quick]``: one table. Microseconds for one call, `update` of priorities from TD errors and
`sample` with importance weights: the time of the GPU (CUDA events; ours with calls waiting ahead, so that the host
hides) and the time of the host until the call returns. All contenders are interleaved; medians of the rounds.

The floor is an estimate from the launch and the memory of the device: see `floor`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log

import torch

ALPHA, BETA, EPS = 0.6, 0.4, 1e-8
POOL = 8  # batches in turn
Call = Callable[[int], object]


@dataclass
class Contender:
    """Both calls; the number is that of the batch."""

    update: Call
    sample: Call
    ours: bool = False  # few launches for each call, and none that waits for the host


@dataclass
class Batches:
    """Indices and errors of all batches, on the GPU."""

    rows: int
    index: list[torch.Tensor]
    error: list[torch.Tensor]

    @property
    def size(self) -> int:
        return len(self.index[0])


def batches(rows: int, size: int, device: torch.device) -> Batches:
    return Batches(
        rows,
        [torch.randint(rows, (size,), device=device) for _ in range(POOL)],
        [torch.randn(size, device=device) for _ in range(POOL)],
    )


def ours(kind: type) -> Callable[[Batches], Contender]:
    def make(data: Batches) -> Contender:
        device = data.index[0].device
        tree = kind(data.rows, device=device)
        tree.update_from_errors(
            torch.arange(data.rows, device=device), torch.rand(data.rows, device=device), EPS, ALPHA
        )
        return Contender(
            lambda i: tree.update_from_errors(data.index[i], data.error[i], EPS, ALPHA),
            lambda i: tree.sample_weighted(data.size, BETA),  # noqa: ARG005
            ours=True,
        )

    return make


def on_the_cpu(data: Batches) -> Contender | None:
    """Our tree on the CPU, with what it takes to bring indices and errors there and draws back."""
    try:
        from rl.native import NativePriorityTree
    except ImportError:
        return None
    device, tree = data.index[0].device, NativePriorityTree(data.rows)
    tree.update_from_errors(torch.arange(data.rows), torch.rand(data.rows), EPS, ALPHA)

    def sample(_: int) -> object:
        index, weight = tree.sample_weighted(data.size, BETA)
        return index.to(device), weight.to(device)

    return Contender(
        lambda i: tree.update_from_errors(data.index[i].cpu(), data.error[i].cpu(), EPS, ALPHA), sample, ours=False
    )


def with_torch(data: Batches) -> Contender:
    """One running sum over all priorities, made for every draw; repeated indices are settled by chance."""
    device = data.index[0].device
    leaf = 1 - torch.rand(data.rows, device=device)

    def update(i: int) -> None:
        leaf[data.index[i]] = (data.error[i].abs() + EPS).pow(ALPHA)

    def sample(_: int) -> object:
        ends = leaf.cumsum(0, dtype=torch.float64)
        u = torch.rand(data.size, dtype=torch.float64, device=device)
        drawn = torch.searchsorted(ends, u * ends[-1], right=True).clamp_(max=data.rows - 1)
        return drawn, (leaf[drawn] / leaf.amin()).pow(-BETA)

    return Contender(update, sample)


def with_wide_torch(data: Batches) -> Contender | None:
    """The torch tree of rl-replay, on the GPU."""
    try:
        from rl.replay._torch_tree import WideTree
    except ImportError:
        return None
    device = data.index[0].device
    tree = WideTree(data.rows, device)
    tree.update(torch.arange(data.rows, device=device), torch.rand(data.rows, device=device) + 1e-3)

    def sample(_: int) -> object:
        index, priority = tree.sample(data.size)
        return index, (priority / tree.min()).pow(-BETA)

    return Contender(lambda i: tree.update(data.index[i], (data.error[i].abs() + EPS).pow(ALPHA)), sample)


def with_torchrl(data: Batches) -> Contender | None:
    """TorchRL's trees on the GPU, in a build that has them for this torch."""
    try:
        from torchrl._torchrl import (  # pyright: ignore[reportMissingImports]
            CudaMinSegmentTreeFp32,
            CudaSumSegmentTreeFp32,
        )

        device = data.index[0].device
        sums, mins = CudaSumSegmentTreeFp32(data.rows, device), CudaMinSegmentTreeFp32(data.rows, device)
        everything, first = torch.arange(data.rows, device=device), torch.rand(data.rows, device=device) + 1e-3
        sums[everything], mins[everything] = first, first
    except Exception as problem:  # noqa: BLE001  its compiled trees load with one version of torch only
        print(f"TorchRL is left out: {type(problem).__name__}: {str(problem).splitlines()[0][:100]}")
        return None

    def update(i: int) -> None:
        priority = (data.error[i].abs() + EPS).pow(ALPHA)
        sums[data.index[i]], mins[data.index[i]] = priority, priority

    def sample(_: int) -> object:
        total, least = sums.query(0, data.rows), mins.query(0, data.rows)
        drawn = sums.scan_lower_bound(torch.rand(data.size, device=device) * total)
        return drawn, (sums[drawn] / least).pow(-BETA)

    return Contender(update, sample)


class Clock:
    """Time of the GPU and of the host for one call."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self.device, self.seconds = device, seconds

    def __call__(self, call: Call, *, ahead: bool) -> tuple[float, float]:
        """Microseconds of the GPU and of the host."""
        start = time.perf_counter()
        call(0)
        torch.cuda.synchronize(self.device)
        # A device takes about a thousand launches ahead; then the host waits.
        count = max(3, min(100, int(self.seconds / (time.perf_counter() - start))))
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if ahead:  # so that all calls are waiting when the first one starts
            torch.cuda._sleep(int(2e9 * 1.5 * count * 60e-6))  # noqa: SLF001  the only way to keep the GPU busy
        began.record()
        start = time.perf_counter()
        for i in range(count):
            call(i % POOL)
        host = (time.perf_counter() - start) / count
        ended.record()
        torch.cuda.synchronize(self.device)
        return 1e3 * began.elapsed_time(ended) / count, 1e6 * host


def interleaved(calls: dict[str, tuple[Call, bool]], clock: Clock, rounds: int) -> dict[str, tuple[float, float]]:
    """Medians for each, of the GPU and of the host."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for call, _ in calls.values():
        for i in range(3):
            call(i % POOL)
    torch.cuda.synchronize(clock.device)
    for _ in range(rounds):
        for name, (call, ahead) in calls.items():
            found[name].append(clock(call, ahead=ahead))
    return {name: tuple(map(statistics.median, zip(*times, strict=True))) for name, times in found.items()}  # type: ignore[misc]


def graph_of_a_step(data: Batches) -> Call:
    """Sample and update, captured in one CUDA graph."""
    from rl.prio_cuda import CudaPriorityTree

    device = data.index[0].device
    tree = CudaPriorityTree(data.rows, device=device)
    tree.update_from_errors(torch.arange(data.rows, device=device), torch.rand(data.rows, device=device), EPS, ALPHA)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        index, _ = tree.sample_weighted(data.size, BETA)
        tree.update_from_errors(index, data.error[0], EPS, ALPHA)
    return lambda _: graph.replay()


@dataclass
class Device:
    """What the floor is made of, measured here."""

    launch: float  # microseconds from one small kernel to the next in a stream
    bandwidth: float  # bytes a microsecond, of a copy

    load = 0.22  # microseconds of a load that waits for the L2 cache: about 400 cycles

    @staticmethod
    def measured(device: torch.device, clock: Clock) -> Device:
        small = torch.zeros(32, device=device)
        large = torch.zeros(2**28, dtype=torch.uint8, device=device)
        other = torch.empty_like(large)
        launch, _ = clock(lambda _: small.add_(1), ahead=True)
        copy, _ = clock(lambda _: other.copy_(large), ahead=True)
        return Device(launch, 2 * large.numel() / copy)


def floor(device: Device, rows: int, batch: int, kind: str) -> float:
    """Microseconds that a call cannot beat: launches, loads that wait for one another, and lines of the L2 cache.

    A draw waits for one load a level and one for the leaves, and moves as many lines. An update waits twice a level,
    and launches once up to 1024 entries, else five times. The L2 cache is taken for twice as fast as a copy.
    """
    levels = max(1, ceil(log(max(rows / 16, 8), 8)))
    lines = batch * 64 * (min(levels, 3) + 1)  # the levels above are read by all, and stay close
    waits = levels + 1 if kind == "sample" else 2 * (levels + 1)
    launches = 1 if kind == "sample" or batch <= 1024 else 5
    return device.launch * launches + waits * device.load + lines / (2 * device.bandwidth)


def rows_of(data: Batches, others: dict[str, Callable[[Batches], Contender | None]]) -> dict[str, Contender]:
    made: dict[str, Contender] = {}
    for name, make in others.items():
        try:
            contender = make(data)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            print(f"{name} is left out at {data.rows:,}: the memory of the GPU is too small")
            continue
        if contender is not None:
            made[name] = contender
    return made


def contenders() -> dict[str, Callable[[Batches], Contender | None]]:
    from rl.prio_cuda import CudaPriorityTree, TritonPriorityTree

    found: dict[str, Callable[[Batches], Contender | None]] = {"cuda": ours(CudaPriorityTree)}
    try:
        import triton  # noqa: F401
    except ImportError:
        print("Triton is not installed: its tree is left out")
    else:
        found["triton"] = ours(TritonPriorityTree)
    return found | {"cpu": on_the_cpu, "cumsum": with_torch, "torch": with_wide_torch, "torchrl": with_torchrl}


def compare(data: Batches, clock: Clock, device: Device, rounds: int, others: dict[str, Callable[..., object]]) -> None:
    made = rows_of(data, others)  # type: ignore[arg-type]
    graph, _ = interleaved({"graph": (graph_of_a_step(data), True)}, clock, rounds)["graph"]
    for kind in ("sample", "update"):
        times = interleaved({n: (getattr(c, kind), c.ours) for n, c in made.items()}, clock, rounds)
        mine, least = times["cuda"], floor(device, data.rows, data.size, kind)
        cells = [f"{mine[0]:8.1f} {mine[1]:8.1f} {mine[0] / least:6.2f}"]
        for name in ("triton", "cpu", "cumsum", "torch", "torchrl"):
            if name not in times:
                cells.append(f"{'-':>18}")
                continue
            taken, own = max(times[name]), max(mine)
            cells.append(f"{taken:9.1f} {taken / own:7.1f}x")
        last = f"{graph:8.1f}" if kind == "update" else f"{'':>8}"
        print(f"{data.rows:>11,} {data.size:>6,} {kind:6} " + " ".join(cells) + " " + last, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10^6 rows and three batches only")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.02, help="for each contender in each round")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This measures a GPU, and torch sees none: torch.cuda.is_available() is False.")
    from rl.prio_cuda import why_not

    if why_not():
        raise SystemExit(why_not())
    device = torch.device("cuda", torch.cuda.current_device())
    clock = Clock(device, options.seconds)
    measured = Device.measured(device, clock)
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    print(f"launch to launch {measured.launch:.2f} us, copy {measured.bandwidth / 1e6:.2f} TB/s")
    print("microseconds; of the others the longer of GPU and host time, and how many times as long as ours")
    heads = " ".join(f"{name:>18}" for name in ("triton", "cpu + transfers", "cumsum", "torch tree", "TorchRL"))
    print(f"{'rows':>11} {'batch':>6} {'call':6} {'GPU':>8} {'host':>8} {'/floor':>6} {heads} {'s+u graph':>8}")
    others = contenders()
    for rows in (10**6,) if options.quick else (10**4, 10**5, 10**6, 10**7, 10**8):
        for size in (256, 2048, 65536) if options.quick else (256, 1024, 2048, 8192, 65536):
            compare(batches(rows, size, device), clock, measured, options.rounds, others)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
