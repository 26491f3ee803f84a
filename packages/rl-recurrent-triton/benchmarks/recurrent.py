"""LSTM and GRU over batches with episode ends on a GPU, beside cuDNN, `pad`, `scan`, a Python loop and TorchRL.

``python benchmarks/recurrent.py [--minutes 20] [--precision tf32] [--dtype float32] [--json FILE]``

Milliseconds of one call among calls one after another (host included), forward, and forward with backward; contenders
in turns in one process, medians. Before the table: numbers of the device that bound a recurrence from below, the
recurrence alone in each launch shape, and errors against float64. After it: the goals, and what was left out. Sizes
come in the order of what is wanted most; the time ends the table, never a line of it.

Without a GPU it says so. ``TRITON_INTERPRET=1 ... --tiny`` tries the program on a CPU; its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from itertools import product
from pathlib import Path

import torch
from recurrent_gpu import Call, Place, in_turns, machine
from recurrent_shapes import MODES, precisions, shapes
from recurrent_sides import SIDES, Problem, Run, Size

from rl.recurrent_triton import why_not

BATCHES, TIMES, WIDTHS, EPISODES = (256, 32, 1024), (128, 32, 512), (256, 64, 512, 1024), (20, 100, 0)
SHAPES = [(256, 128, 256), (4096, 64, 128), (32, 512, 512)]
TARGET = Size("lstm", 256, 128, 256, 20)
Times = dict[tuple[str, str], float]
"""By contender and pass; ``"memory"`` beside the passes is in MiB."""


def grid(*, tiny: bool) -> list[Size]:
    """The table, what is wanted most first."""
    if tiny:
        return [Size("lstm", 3, 4, 20, 3), Size("gru", 3, 4, 20, 0)]
    every = product(BATCHES, WIDTHS, TIMES, EPISODES, ("lstm", "gru"))
    order = [Size(cell, batch, time, hidden, episode) for batch, hidden, time, episode, cell in every]
    return sorted(order, key=lambda size: (size.batch != 256) + (size.time != 128) + (size.hidden != 256))


class Table:
    """Times and memory of all contenders at each size.

    Args:
        place: where.
        dtype: of weights and data.
        rounds: of each contender.
        seconds: for each in each round.
    """

    def __init__(self, place: Place, dtype: torch.dtype, rounds: int, seconds: float) -> None:
        self.place, self.dtype, self.rounds, self.seconds = place, dtype, rounds, seconds
        self.absent: dict[str, str] = {}
        self.found: dict[Size, Times] = {}

    def add(self, size: Size) -> None:
        """Measure one size, and print it."""
        problem = Problem(size, self.place.device, self.dtype)
        runs = {name: run for name in SIDES if (run := self._made(name, problem)) is not None}
        times: Times = {}
        forward = {name: _without_grad(run) for name, run in runs.items()}
        both = {name: _with_grad(name, run, problem) for name, run in runs.items()}
        for passes, calls in (("forward", forward), ("both", both)):
            taken = in_turns(self.place, calls, rounds=self.rounds, seconds=self.seconds)
            times |= {(name, passes): ms for name, ms in taken.items()}
        for name in ("triton", "full", "pad", "cuDNN, no resets"):
            if name in both:
                times[name, "memory"] = self.place.peak(both[name]) / 2**20
        self.found[size] = times
        for passes in ("forward", "both"):
            print(f"{size} {passes:8}" + "".join(_cell(times.get((name, passes))) for name in SIDES), flush=True)
        print(f"{size} MiB     " + "".join(_cell(times.get((name, "memory"))) for name in SIDES), flush=True)
        del problem, runs, forward, both
        self.place.forget()

    def _made(self, name: str, problem: Problem) -> Run | None:
        """A contender that ran forward and backward here; None if it cannot, for which the first reason is kept."""
        if name in self.absent and "out of memory" not in self.absent[name]:
            return None
        try:
            run = SIDES[name](problem)
            _with_grad(name, run, problem)()
            self.place.synchronize()
        except Exception as reason:  # noqa: BLE001  whatever keeps one away, the others go on
            text = str(reason).splitlines()[0][:110] if str(reason) else ""
            self.absent.setdefault(name, f"{type(reason).__name__}: {text} (at {problem.size})")
            self.place.forget()
            return None
        return run

    def ratio(self, size: Size, other: str, name: str, passes: str = "both") -> float | None:
        """How many times as long `other` takes as `name`."""
        times = self.found[size]
        if (other, passes) not in times or (name, passes) not in times:
            return None
        return times[other, passes] / times[name, passes] if times[name, passes] else None


def _without_grad(run: Run) -> Call:
    def call() -> None:
        with torch.no_grad():
            run()

    return call


def _with_grad(name: str, run: Run, problem: Problem) -> Call:
    leaves = problem.leaves(name)
    return lambda: torch.autograd.grad(run(), leaves, problem.grad)


def _cell(value: float | None) -> str:
    return f"{'-':>18}" if value is None else f"{value:18.3f}"


def goals(table: Table) -> list[str]:
    """What was wanted, and what came of it."""
    sizes = list(table.found)

    def over(name: str, other: str, chosen: list[Size], passes: str = "both") -> list[float]:
        found = [table.ratio(size, other, name, passes) for size in chosen]
        return [ratio for ratio in found if ratio is not None]

    def line(what: str, ratios: list[float], goal: float, *, least: bool) -> str:
        if not ratios:
            return f"not measured  {what}"
        worst = min(ratios) if least else max(ratios)
        good = worst >= goal if least else worst <= goal
        middle = statistics.median(ratios)
        said = "reached" if good else "MISSED"
        return f"{said:13} {what}: {worst:.2f} at worst, {middle:.2f} in the middle of {len(ratios)}"

    ends, none = [s for s in sizes if s.episode], [s for s in sizes if not s.episode and s.hidden <= 512]
    memory = [
        (table.found[s]["full", "memory"] / table.found[s]["triton", "memory"])
        for s in sizes
        if table.found[s].get(("triton", "memory")) and ("full", "memory") in table.found[s]
    ]
    found = [
        line("pad / triton with resets, at least 2", over("triton", "pad", ends), 2, least=True),
        line(
            "cuDNN / triton without resets, H <= 512, at least 0.9",
            over("triton", "cuDNN, no resets", none),
            0.9,
            least=True,
        ),
        line("full / none in time, at most 1.35", over("triton", "full", sizes), 1.35, least=False),
        line("full / none in memory, at most 0.5", memory, 0.5, least=False),
    ]
    for passes, most in (("forward", 0.45), ("both", 1.1)):
        took = table.found.get(TARGET, {}).get(("triton", passes))
        told = "not measured " if took is None else "reached      " if took <= most else "MISSED       "
        found.append(f"{told} {TARGET} {passes}, at most {most} ms" + ("" if took is None else f": {took:.3f}"))
    return found


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="after which no further size is begun")
    parser.add_argument("--precision", choices=["tf32", "ieee"], default="tf32", help="of float32 products, for all")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.05, help="for each contender in each round")
    parser.add_argument("--only-table", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="sizes that Triton's interpreter can do")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(words)


def place_of(options: argparse.Namespace) -> Place | str:
    """Where to measure, or why not."""
    if torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
        return why_not(device) or Place(device)
    if options.tiny and not why_not("cpu"):
        return Place(torch.device("cpu"))
    tried = "" if options.tiny else " (`TRITON_INTERPRET=1` with `--tiny` tries the program without one)"
    return f"This measures a GPU, and torch sees none: torch.cuda.is_available() is False{tried}."


def before_the_table(place: Place, options: argparse.Namespace) -> None:
    for name, value in machine(place, seconds=options.seconds).items():
        print(f"{name}: {value:.3g}")
    if not place.is_gpu:
        print("left out: numbers of the device, CUDA graphs, memory")
    sizes, modes = ([(2, 3, 20)], ["ieee", "bfloat16"]) if options.tiny else (SHAPES, list(MODES))
    lines = [Size(cell, *size, 50) for size in sizes for cell in ("lstm", "gru")]
    for line in shapes(place, lines, modes, rounds=options.rounds, seconds=options.seconds):
        print(line, flush=True)
    for line in precisions(place, lines[:2], modes):
        print(line, flush=True)


def main(words: list[str]) -> int:
    """Measure; 0 also where there is nothing to measure, which it says."""
    options, start = parse(words), time.monotonic()
    place = place_of(options)
    if isinstance(place, str):
        print(place)
        return 0
    warnings.simplefilter("ignore")
    if options.tiny:
        options.rounds, options.seconds = 1, 0.0
    torch.backends.cuda.matmul.fp32_precision = options.precision
    torch.backends.cudnn.rnn.fp32_precision = options.precision  # pyright: ignore[reportAttributeAccessIssue]
    print(f"{place.says()}; {options.dtype}, products in {options.precision}", flush=True)
    if not options.only_table:
        before_the_table(place, options)
    table, left = Table(place, getattr(torch, options.dtype), options.rounds, options.seconds), 0
    print(f"{'':60}" + "".join(f"{name:>18}" for name in SIDES))
    for size in grid(tiny=options.tiny):
        if time.monotonic() - start > 60 * options.minutes:
            left += 1
            continue
        table.add(size)
    for line in [] if options.tiny else goals(table):
        print(line)
    for name, reason in table.absent.items():
        print(f"left out: {name}: {reason}")
    if left:
        print(f"left out for lack of time: {left} sizes; --minutes gives more")
    if options.json:
        found = [
            {"size": vars(size), "times": {" | ".join(k): v for k, v in t.items()}} for size, t in table.found.items()
        ]
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{time.monotonic() - start:.0f} seconds")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
