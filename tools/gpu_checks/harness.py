"""What the sections of `tools/check_gpu.py` share: checks, and medians of interleaved calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Figures = dict[str, float | str]
Call = Callable[[], object]


class Skipped(Exception):  # noqa: N818  it is no error
    """Raised by a check that this machine cannot run; the message says what is missing."""


@dataclass(frozen=True)
class Goal:
    """A bound for one figure of a check. A goal that is missed is reported and does not fail the check.

    Args:
        figure: Name of the figure.
        most: The figure should be at most this.
        least: The figure should be at least this.
    """

    figure: str
    most: float | None = None
    least: float | None = None

    def is_met(self, value: float) -> bool:
        """Whether a value is within the bound."""
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)

    def __str__(self) -> str:
        return f"{self.figure} <= {self.most:,g}" if self.least is None else f"{self.figure} >= {self.least:,g}"


@dataclass(frozen=True)
class Context:
    """Where checks run.

    Args:
        device: The CUDA device; the CPU if `dry`.
        dry: Whether there is no device, and sizes are the smallest.
        jobs: Processes of tests at once.
        seconds: Time for all checks of the section.
    """

    device: torch.device
    dry: bool
    jobs: int = 1
    seconds: float = 600.0


@dataclass(frozen=True)
class Check:
    """One line of the report.

    Args:
        name: What is checked, in a few words; unique within its section.
        run: Function without arguments that raises if the check fails, raises `Skipped` if it cannot run here, and
            returns figures by name, or None.
        goals: Bounds of figures.
        seconds: Longest time of the check; it counts as failed, and its process is killed, after it.
    """

    name: str
    run: Callable[[], Figures | None]
    goals: tuple[Goal, ...] = ()
    seconds: float = 60.0


def wait(device: torch.device) -> None:
    """Wait until the device has done all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def microseconds(call: Call, device: torch.device, repeats: int) -> float:
    """Time of one of several calls in a row: of the host or of the device, whichever takes longer."""
    wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    wait(device)
    return 1e6 * (time.perf_counter() - start) / repeats


def medians(
    sides: Mapping[str, Call], device: torch.device, *, rounds: int = 9, repeats: int = 20, warm_up: int = 2
) -> dict[str, float]:
    """Median microseconds of one call of each side; the sides take turns, and each round times several calls.

    Args:
        sides: Functions without arguments, by name.
        device: Where they compute.
        rounds: How often each side is timed.
        repeats: How many calls in a row are timed at once.
        warm_up: Calls of each side before the first is timed.
    """
    for call in sides.values():
        for _ in range(warm_up):
            call()
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            times[name].append(microseconds(call, device, repeats))
    return {name: statistics.median(each) for name, each in times.items()}


def capture(call: Call, device: torch.device, *, warm_up: int = 3) -> Call:
    """Return a function that replays the call from a CUDA graph; the call itself on a CPU.

    Args:
        call: Function without arguments, that allocates nothing that has to outlive it and never waits for the device.
        device: Where it computes.
        warm_up: Calls on a stream of their own before the capture.
    """
    if device.type != "cuda":
        return call
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            call()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    kept = graph, call  # what the call closes over is memory that each replay reads and writes

    def replay() -> None:
        kept[0].replay()

    return replay


class Gaussian(nn.Module):
    """Mean and standard deviation, each from half of the outputs of a network."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        loc, raw = self.body(x).chunk(2, -1)
        return loc.tanh(), raw.clamp(-5, -2).exp()
