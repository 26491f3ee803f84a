"""Everything that is measured: our trees, and what else a program could use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

ALPHA, BETA, EPS = 0.6, 0.4, 1e-8


class AbsentError(Exception):
    """A side cannot take part; the message says why."""


@dataclass(frozen=True)
class Side:
    """One way to keep priorities.

    Args:
        update: priorities from errors ``[n]`` at indices ``[n]``.
        sample: so many draws with importance weights.
        draw: indices by given uniforms ``[n]`` float64, if it has that.
        few: few launches for each call, none of which waits for the host.
    """

    update: Callable[[Tensor, Tensor], object] | None
    sample: Callable[[int], object] | None
    draw: Callable[[Tensor], object] | None = None
    few: bool = False


Make = Callable[[int, torch.device], Side]


def ours(kind: type) -> Make:
    """A tree of this package: the library's, or the Triton twin."""

    def make(rows: int, device: torch.device) -> Side:
        tree = kind(rows, device=device)
        tree.update_from_errors(torch.arange(rows, device=device), torch.rand(rows, device=device), EPS, ALPHA)
        return Side(
            lambda index, error: tree.update_from_errors(index, error, EPS, ALPHA),
            lambda n: tree.sample_weighted(n, BETA),
            lambda u: tree.sample_weighted(len(u), BETA, u=u),
            few=True,
        )

    return make


def by_warps(rows: int, device: torch.device) -> Side:
    """Draws with a warp for each, from a tree of the library."""
    from rl.prio_cuda import CudaPriorityTree
    from rl.prio_cuda._layout import layout

    if find_spec("triton") is None:
        raise AbsentError("Triton is not installed")
    from prio_kernels import draw_by_warps

    tree, plan = CudaPriorityTree(rows, device=device), layout(rows, 32)
    tree.update_from_errors(torch.arange(rows, device=device), torch.rand(rows, device=device), EPS, ALPHA)
    at = torch.tensor(plan.at, device=device)
    u = torch.rand(10_000, dtype=torch.float64, device=device)
    same = (draw_by_warps(tree.buffer, at, plan.leaves, u) == tree.sample(len(u), u=u)[0]).double().mean().item()
    if same < 0.999:  # it adds in another order, and repairs nothing
        raise AbsentError(f"only {same:.1%} of its draws are those of the library")
    return Side(None, None, lambda u: draw_by_warps(tree.buffer, at, plan.leaves, u), few=True)


def on_the_cpu(rows: int, device: torch.device) -> Side:
    """Our tree on the CPU, with what it takes to bring indices and errors there and draws back."""
    try:
        from rl.native import NativePriorityTree
    except ImportError as problem:
        raise AbsentError("rl-native is not installed") from problem
    tree = NativePriorityTree(rows)
    tree.update_from_errors(torch.arange(rows), torch.rand(rows), EPS, ALPHA)

    def sample(n: int) -> object:
        index, weight = tree.sample_weighted(n, BETA)
        return index.to(device), weight.to(device)

    return Side(lambda index, error: tree.update_from_errors(index.cpu(), error.cpu(), EPS, ALPHA), sample)


def with_sums(rows: int, device: torch.device) -> Side:
    """Torch alone: one running sum over all priorities, made for every draw. Chance settles repeated indices."""
    leaf = 1 - torch.rand(rows, device=device)

    def update(index: Tensor, error: Tensor) -> None:
        leaf[index] = (error.abs() + EPS).pow(ALPHA)

    def sample(n: int) -> object:
        ends = leaf.cumsum(0, dtype=torch.float64)
        u = torch.rand(n, dtype=torch.float64, device=device)
        drawn = torch.searchsorted(ends, u * ends[-1], right=True).clamp_(max=rows - 1)
        return drawn, (leaf[drawn] / leaf.amin()).pow(-BETA)

    return Side(update, sample)


def with_torch(rows: int, device: torch.device) -> Side:
    """The torch tree of rl-replay, which it uses where there is nothing better."""
    try:
        from rl.replay._torch_tree import WideTree
    except ImportError as problem:
        raise AbsentError("rl-replay is not installed") from problem
    tree = WideTree(rows, device)
    tree.update(torch.arange(rows, device=device), torch.rand(rows, device=device) + 1e-3)

    def sample(n: int) -> object:
        index, priority = tree.sample(n)
        return index, (priority / tree.min()).pow(-BETA)

    return Side(lambda index, error: tree.update(index, (error.abs() + EPS).pow(ALPHA)), sample)


def with_torchrl(rows: int, device: torch.device) -> Side:
    """TorchRL's trees on the GPU, used as its sampler uses them, in a build that has them for this torch."""
    try:
        from torchrl._torchrl import (  # pyright: ignore[reportMissingImports]
            CudaMinSegmentTreeFp32,
            CudaSumSegmentTreeFp32,
        )
    except Exception as problem:  # its compiled trees load with one version of torch only
        said = str(problem).splitlines()[0][:160]
        raise AbsentError(f"no build of its CUDA trees is here: {type(problem).__name__}: {said}") from problem
    sums, mins = CudaSumSegmentTreeFp32(rows, device), CudaMinSegmentTreeFp32(rows, device)
    everything, first = torch.arange(rows, device=device), torch.rand(rows, device=device) + 1e-3
    sums[everything], mins[everything] = first, first
    left = torch.zeros((), dtype=torch.int64, device=device)
    right = torch.full((), rows, dtype=torch.int64, device=device)

    def update(index: Tensor, error: Tensor) -> None:
        priority = (error.abs() + EPS).pow(ALPHA)
        sums[index], mins[index] = priority, priority

    def sample(n: int) -> object:
        total, least = sums.query(left, right), mins.query(left, right)
        drawn = sums.scan_lower_bound(torch.rand(n, device=device) * total).clamp_max_(rows - 1)
        return drawn, (sums[drawn] / least).pow(-BETA)

    return Side(update, sample)


OTHERS = {"warps": "a warp a draw", "triton": "Triton twin", "cpu": "CPU + transfers"} | {
    "sums": "torch: cumsum",
    "torch": "torch: tree",
    "torchrl": "TorchRL",
}
"""Names of the sides beside the library's, as the table calls them."""


def sides() -> dict[str, Make]:
    """All of them, by name."""
    from rl.prio_cuda import CudaPriorityTree, TritonPriorityTree

    def triton(rows: int, device: torch.device) -> Side:
        if find_spec("triton") is None:
            raise AbsentError("Triton is not installed")
        return ours(TritonPriorityTree)(rows, device)

    return {
        "cuda": ours(CudaPriorityTree),
        "warps": by_warps,
        "triton": triton,
        "cpu": on_the_cpu,
        "sums": with_sums,
        "torch": with_torch,
        "torchrl": with_torchrl,
    }


def made(makes: dict[str, Make], rows: int, device: torch.device, absent: dict[str, str]) -> dict[str, Side]:
    """The sides that take part at this capacity; of the others, `absent` gets the reason.

    A side that is absent once is not asked again; one whose memory is too small here is.
    """
    found: dict[str, Side] = {}
    for name, make in makes.items():
        if name in absent:
            continue
        try:
            found[name] = make(rows, device)
        except AbsentError as problem:
            absent[name] = str(problem)
            print(f"{OTHERS[name]} is left out: {problem}", flush=True)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            print(f"{OTHERS.get(name, name)} is left out at {rows:,}: the memory of the GPU is too small", flush=True)
    return found
