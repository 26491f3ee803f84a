"""What the benchmark checks before it believes a number: draws, repeated indices, and two CUDA runtimes in a process.

A check returns what is wrong, and nothing if nothing is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from prio_gpu import Gpu
from torch import Tensor

Make = Callable[..., Any]
"""A tree, of a capacity and ``device=``."""


def chi_square(index: Tensor, priority: Tensor, cells: int) -> float:
    """How many standard deviations the statistic of these draws lies above what it is on average.

    Rows are put together into cells of about equal mass, so that each is drawn often.
    """
    share = priority.double() / priority.double().sum()
    cell = (share.cumsum(0) * cells).long().clamp_(max=cells - 1)
    expected = torch.zeros(cells, dtype=torch.float64, device=index.device).index_add_(0, cell, share) * len(index)
    counts = torch.bincount(cell[index], minlength=cells)
    used = expected > 5
    statistic = ((counts[used] - expected[used]) ** 2 / expected[used]).sum().item()
    degrees = max(1, int(used.sum()) - 1)
    return (statistic - degrees) / (2 * degrees) ** 0.5


def draws(gpu: Gpu, make: Make, *, rows: int, count: int) -> str:
    """Draws are in proportion, where all priorities are alike and where they are far apart.

    Uniforms of 24 bits, as a float32 has, fail this by tens of standard deviations.
    """
    for name, priority in (
        ("equal", torch.ones(rows, device=gpu.device)),
        ("uneven", torch.rand(rows, device=gpu.device) ** 8 * 1000),
    ):
        tree = make(rows, device=gpu.device)
        tree.update(torch.arange(rows, device=gpu.device), priority)
        away = chi_square(tree.sample(count)[0], priority, max(2, min(10**5, count // 100)))
        tree.check()
        if not abs(away) < 5:
            return f"{name} priorities: chi-square is {away:.1f} standard deviations away"
    return ""


def last_of(index: Tensor, value: Tensor, rows: int) -> Tensor:
    """What an array of zeros holds after it was written entry by entry."""
    places = torch.arange(len(index), device=index.device)
    last = torch.full((rows,), -1, device=index.device).scatter_reduce_(0, index, places, "amax")
    return torch.where(last < 0, 0.0, value[last.clamp(min=0)])


def repeated(gpu: Gpu, make: Make, *, times: int = 20) -> str:
    """Of a repeated index the last one counts, always: one block and several launches, many times."""
    rows = 300
    for n in (32, 1024, 1025, 65_536):
        for _ in range(times):
            tree = make(rows, device=gpu.device)
            index = torch.randint(rows, (n,), device=gpu.device)
            priority = torch.rand(n, device=gpu.device)
            tree.update(index, priority)
            held = tree.get(torch.arange(rows, device=gpu.device))
            tree.check()
            if not torch.equal(held, last_of(index, priority, rows)):
                return f"of {n} entries, not always the last one was kept"
    return ""


def streams(gpu: Gpu, make: Make) -> str:
    """Our launches and torch's wait for one another, on each stream."""
    tree, rows = make(5000, device=gpu.device), torch.arange(5000, device=gpu.device)
    for value in range(1, 6):
        with gpu.aside():
            gpu.hold(2000)  # whoever does not wait is early
            late = torch.zeros(5000, device=gpu.device) + value
            tree.update(rows, late)
            doubled = tree.get(rows) * 2
        if tree.total().item() != 5000 * value or not bool((doubled == 2 * value).all()):
            return "a launch did not wait for what came before it on its stream"
    return ""


def events(gpu: Gpu, make: Make) -> str:
    """An event of torch, recorded behind a launch of ours, waits for it."""
    tree, event = make(100, device=gpu.device), gpu.event()
    rows, priority = torch.arange(100, device=gpu.device), torch.ones(100, device=gpu.device)
    tree.update(rows, priority)
    gpu.synchronize()
    gpu.hold(20_000)
    tree.update(rows, 3 * priority)
    event.record()
    early = bool(event.query())
    gpu.synchronize()
    if early or tree.total().item() != 300:
        return "an event came before the launch that it was recorded behind"
    return ""


def graphs(gpu: Gpu, make: Make) -> str:
    """Launches of both in one graph, replayed with other numbers, do what they do outside of it."""
    trees = [make(5000, device=gpu.device) for _ in range(2)]
    rows = torch.arange(5000, device=gpu.device)
    u = torch.rand(2000, dtype=torch.float64, device=gpu.device)
    error, kept = torch.randn(2000, device=gpu.device), torch.zeros(2000, device=gpu.device)

    def step(tree: Any) -> None:
        index, weight = tree.sample_weighted(len(u), 0.4, u=u)
        kept.copy_(weight * 2)
        tree.update_from_errors(index, error + kept, 1e-6, 0.6)

    for tree in trees:
        tree.update(rows, torch.ones(5000, device=gpu.device))
    replay = gpu.capture(lambda: step(trees[0]))
    trees[1].load_state_dict(trees[0].state_dict())
    for _ in range(5):
        u.uniform_()
        error.normal_()
        replay()
        step(trees[1])
        if not torch.equal(*(tree.get(rows) for tree in trees)):
            return "a replayed graph does other things than the calls in it"
    return ""


def memory(gpu: Gpu, make: Make) -> str:
    """Calls keep no memory, and what torch frees while a launch still waits for it is not given away too early."""
    tree, rows = make(10_000, device=gpu.device), torch.arange(10_000, device=gpu.device)
    tree.update(rows, torch.ones(10_000, device=gpu.device))

    def step(value: float) -> None:
        index, _ = tree.sample_weighted(4096, 0.4)
        tree.update_from_errors(index, torch.full((4096,), value, device=gpu.device), 1.0, 1.0)
        del index
        torch.full((4096,), -1, device=gpu.device)  # takes the place of the indices, which the launch still reads

    step(0.0)
    gpu.synchronize()
    before = gpu.allocated()
    for number in range(200):
        step(float(number))
    gpu.synchronize()
    tree.check()
    grown = gpu.allocated() - before
    return f"{grown:,} bytes were kept" if grown else ""


def errors(gpu: Gpu, make: Make) -> str:
    """What one runtime refuses, the other one does not take for its own."""
    from rl.prio_cuda._platform import platform_of

    tree, rows = make(100, device=gpu.device), torch.arange(100, device=gpu.device)
    number, name = ctypes.c_int(), ctypes.create_string_buffer(9)
    library = platform_of(gpu.device).functions()
    if not library.rl_prio_device(4096, ctypes.byref(number), ctypes.byref(number), name, len(name)):
        return "there seem to be 4097 devices"
    if torch.ones(3, device=gpu.device).sum().item() != 3:
        return "torch adds up wrong after an error of ours"
    tree.update(rows, torch.ones(100, device=gpu.device))
    return "" if tree.total().item() == 100 else "a call does nothing after an error"


def all_checks(gpu: Gpu, makes: dict[str, Make], *, rows: int, count: int, times: int) -> dict[str, str]:
    """All of them, by what they say; for each, what is wrong.

    Args:
        gpu: where they run.
        makes: trees by name; the first one is the library's.
        rows: of the trees that are drawn from.
        count: of draws.
        times: that repeated indices are written.
    """
    found: dict[str, str] = {}
    for name, make in makes.items():
        found[f"{name}: {count:,} draws from {rows:,} rows are in proportion"] = draws(
            gpu, make, rows=rows, count=count
        )
        found[f"{name}: of repeated indices the last one counts"] = repeated(gpu, make, times=times)
        found[f"{name}: one graph holds sample and update"] = graphs(gpu, make)
    first = next(iter(makes.values()))
    for check in (streams, events, memory, errors):
        found[f"beside torch's CUDA runtime, {check.__name__}"] = check(gpu, first)
    return found
