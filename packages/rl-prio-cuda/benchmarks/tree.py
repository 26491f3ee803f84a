"""Time CUDA priority trees against what a program would use without them: ``python benchmarks/tree.py [--quick]``.

Prints medians in microseconds of one call and the ratio to `CudaPriorityTree`, for updates from TD errors and weighted
samples. All implementations run interleaved in one process, each call waits for the device. Other implementations:

- ``cumsum``: one cumulative sum over all priorities for each sample, in plain torch;
- ``torch tree``: the tree that rl-replay uses when nothing faster is installed;
- ``cpu``: rl-native's tree with the copies of indices and errors to the CPU and of samples back.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from rl.prio_cuda import CudaPriorityTree, why_not

ALPHA, BETA, EPS = 0.6, 0.4, 1e-8
Implementation = tuple[Callable[[Tensor, Tensor], object], Callable[[int], object]]


def cuda_tree(rows: int, device: torch.device) -> Implementation:
    tree = CudaPriorityTree(rows, device=device)
    tree.update_from_errors(torch.arange(rows, device=device), torch.rand(rows, device=device), EPS, ALPHA)
    return lambda index, error: tree.update_from_errors(index, error, EPS, ALPHA), lambda n: tree.sample_weighted(
        n, BETA
    )


def cumulative_sum(rows: int, device: torch.device) -> Implementation:
    leaf = 1 - torch.rand(rows, device=device)

    def update(index: Tensor, error: Tensor) -> None:
        leaf[index] = (error.abs() + EPS).pow(ALPHA)

    def sample(n: int) -> object:
        ends = leaf.cumsum(0, dtype=torch.float64)
        u = torch.rand(n, dtype=torch.float64, device=device)
        index = torch.searchsorted(ends, u * ends[-1], right=True).clamp_(max=rows - 1)
        return index, (leaf[index] / leaf.amin()).pow(-BETA)

    return update, sample


def torch_tree(rows: int, device: torch.device) -> Implementation:
    from rl.plugins.replay import rl_priority_tree

    tree = rl_priority_tree(rows, device, torch.float32)
    assert tree is not None
    tree.update(torch.arange(rows, device=device), torch.rand(rows, device=device) + 1e-3)

    def sample(n: int) -> object:
        index, priority = tree.sample(n)
        return index, (priority / tree.min()).pow(-BETA)

    return lambda index, error: tree.update(index, (error.abs() + EPS).pow(ALPHA)), sample


def cpu_tree(rows: int, device: torch.device) -> Implementation:
    from rl.native import NativePriorityTree

    tree = NativePriorityTree(rows)
    tree.update_from_errors(torch.arange(rows), torch.rand(rows), EPS, ALPHA)

    def sample(n: int) -> object:
        index, weight = tree.sample_weighted(n, BETA)
        return index.to(device), weight.to(device)

    return lambda index, error: tree.update_from_errors(index.cpu(), error.cpu(), EPS, ALPHA), sample


MAKES = {"cuda": cuda_tree, "cumsum": cumulative_sum, "torch tree": torch_tree, "cpu": cpu_tree}


def microseconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Mean time of one call; the device is idle before the first and after the last."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return 1e6 * (time.perf_counter() - start) / repeats


def measure(
    rows: int, batch: int, device: torch.device, *, rounds: int = 15, repeats: int = 20
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield ``"update"`` and ``"sample"`` with the median microseconds of each implementation."""
    made: dict[str, Implementation] = {}
    for name, make in MAKES.items():
        try:
            made[name] = make(rows, device)
        except ImportError as error:
            print(f"{name} is left out: {error}")
    index, error = torch.randint(rows, (batch,), device=device), torch.randn(batch, device=device)
    for kind in ("update", "sample"):
        times: dict[str, list[float]] = {name: [] for name in made}
        for _ in range(rounds + 1):  # the first round warms up
            for name, (update, sample) in made.items():
                call = (lambda f=update: f(index, error)) if kind == "update" else (lambda f=sample: f(batch))
                times[name].append(microseconds(call, device, repeats))
        yield kind, {name: statistics.median(each[1:]) for name, each in times.items()}


def main(words: list[str]) -> int:
    """Print the table; 1 if there is no GPU or no compiled library."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10^6 rows and two batch sizes only")
    quick = parser.parse_args(words).quick
    if why_not():
        print(why_not())
        return 1
    device = torch.device("cuda", torch.cuda.current_device())
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}; microseconds, and ratio to cuda")
    for rows in (10**6,) if quick else (10**4, 10**5, 10**6, 10**7):
        for batch in (256, 65_536) if quick else (32, 256, 2048, 65_536):
            for kind, times in measure(rows, batch, device):
                cells = [f"{name} {value:8.1f} ({value / times['cuda']:5.1f})" for name, value in times.items()]
                print(f"{rows:>11,} rows, batch {batch:>6,} {kind}: " + "  ".join(cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
