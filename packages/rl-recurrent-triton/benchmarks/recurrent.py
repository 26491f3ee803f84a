"""LSTM and GRU over batches with episode ends on a GPU, beside cuDNN, `pad`, `scan`, a Python loop and TorchRL.

``python benchmarks/recurrent.py [--minutes 8] [--whole] [--precision tf32] [--dtype float32] [--json FILE]``

Microseconds of one call among calls one after another (host included), forward, and forward with backward;
implementations interleaved in one process, medians; the most memory of a call beyond what it is given; and seconds of
the first call, in which some compile. Before the table: numbers of the device that bound a recurrence from below,
errors against float64, and the recurrence alone in each launch shape. After it: beside cuDNN in other types, beside
TorchRL, the goals, and what was left out. Sizes come in the order of what is wanted most. The time ends a part, never
a line of it; ``--whole`` measures all contenders at all sizes, for hours. What Triton compiled earlier is not used, as
first calls are measured.

Without a GPU it says so. ``TRITON_INTERPRET=1 ... --tiny`` tries the program on a CPU; its times mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path

import torch
from recurrent_gpu import Call, Place, interleave, machine
from recurrent_shapes import MODES, precisions, shapes
from recurrent_sides import PEERS, SIDES, Problem, Run, Size, use_precision

from rl.recurrent_triton import why_not

BATCHES, TIMES, WIDTHS, EPISODES = (256, 32, 1024), (128, 32, 512), (256, 64, 512, 1024), (20, 100, 0)
SHAPES = [(256, 128, 256), (4096, 64, 128), (32, 512, 512)]
TARGET = Size("lstm", 256, 128, 256, 20)
SLOW = ("scan, compiled", "Python loop")
"""Where they are measured without ``--whole``: at the first of `SHAPES` alone, as each new size costs them seconds."""
Times = dict[tuple[str, str], float]
"""By contender and pass, in milliseconds; beside the passes ``"memory"`` in MiB and ``"first"`` in seconds."""


def grid(*, tiny: bool) -> list[Size]:
    """The table, what is wanted most first."""
    if tiny:
        return [Size("lstm", 3, 4, 20, 3), Size("gru", 3, 4, 20, 0)]
    every = [(batch, time, hidden) for batch, hidden, time in product(BATCHES, WIDTHS, TIMES)]
    others = [of for of in every if of not in SHAPES]
    others.sort(key=lambda of: sum(a != b for a, b in zip(of, SHAPES[0], strict=True)))
    return [Size(cell, *of, episode) for of in (*SHAPES, *others) for episode in EPISODES for cell in ("lstm", "gru")]


def contenders(size: Size, options: argparse.Namespace) -> list[str]:
    """Who is measured at a size; TorchRL has a part of its own, as its first calls take minutes."""
    slow = options.whole or options.tiny or (size.batch, size.time, size.hidden) == SHAPES[0]
    return [name for name in SIDES if name not in PEERS and (slow or name not in SLOW)]


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

    def head(self, names: Iterable[str]) -> None:
        """Print who stands in which column."""
        print(f"{'microseconds; MiB; seconds':60}" + "".join(f"{name:>18}" for name in names), flush=True)

    def add(self, size: Size, names: Sequence[str]) -> None:
        """Measure these contenders at one size, and print it; what does not run is kept in `absent`."""
        self.place.forget()
        problem, times = Problem(size, self.place.device, self.dtype), Times()
        runs = {name: run for name in names if (run := self._made(name, problem, times)) is not None}
        forward = {name: _without_grad(run) for name, run in runs.items()}
        both = {name: _with_grad(name, run, problem) for name, run in runs.items()}
        for passes, calls in (("forward", forward), ("both", both)):
            taken = interleave(self.place, calls, rounds=self.rounds, seconds=self.seconds)
            times |= {(name, passes): ms for name, ms in taken.items()}
        times |= {(name, "memory"): self.place.peak(call) / 2**20 for name, call in both.items()}
        self.found[size] = times
        for what, unit in (("forward", 1e3), ("both", 1e3), ("memory", 1.0), ("first", 1.0)):
            cells = (_cell(times.get((name, what)), unit) for name in names)
            print(f"{size} {what:8}" + "".join(cells), flush=True)

    def _made(self, name: str, problem: Problem, times: Times) -> Run | None:
        """A contender that ran forward and backward here, and how long that took; None, with a reason, if it cannot."""
        if name in self.absent and "out of memory" not in self.absent[name]:
            return None
        try:
            run = SIDES[name](problem)
            start = time.perf_counter()
            _with_grad(name, run, problem)()
            self.place.synchronize()
            times[name, "first"] = time.perf_counter() - start
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


def _cell(value: float | None, unit: float) -> str:
    return f"{'-':>18}" if value is None else f"{unit * value:18.1f}"


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
        *(
            line(f"pad / triton with resets, {passes}, at least 2", over("triton", "pad", ends, passes), 2, least=True)
            for passes in ("forward", "both")
        ),
        *(
            line(
                f"cuDNN / triton without resets, H <= 512, {passes}, at least 0.9",
                over("triton", "cuDNN, no resets", none, passes),
                0.9,
                least=True,
            )
            for passes in ("forward", "both")
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
    parser.add_argument("--minutes", type=float, default=8.0, help="after which nothing further is begun")
    parser.add_argument("--whole", action="store_true", help="all contenders at all sizes, however long it takes")
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


class Clock:
    """Parts of the time that there is.

    Args:
        minutes: for everything; None without an end.
    """

    def __init__(self, minutes: float | None) -> None:
        self.start, self.minutes = time.monotonic(), minutes

    def past(self, share: float) -> bool:
        """Whether this share of the time is over."""
        return self.minutes is not None and time.monotonic() - self.start > 60 * share * self.minutes


def before_the_table(place: Place, options: argparse.Namespace, clock: Clock) -> None:
    for name, value in machine(place, seconds=options.seconds).items():
        print(f"{name}: {value:.3g}")
    if not place.is_gpu:
        print("left out: numbers of the device, CUDA graphs, memory")
    sizes, modes = ([(2, 3, 20)], ["ieee", "bfloat16"]) if options.tiny else (SHAPES, list(MODES))
    lines = [Size(cell, *size, 50) for size in sizes for cell in ("lstm", "gru")]
    for line in precisions(place, lines[:2], modes):
        print(line, flush=True)
    for line in shapes(
        place, lines, modes, rounds=options.rounds, seconds=options.seconds, stop=lambda: clock.past(0.3)
    ):
        print(line, flush=True)


def measure(table: Table, work: Iterable[tuple[Size, Sequence[str]]], clock: Clock, share: float) -> None:
    """Lines of a table until a share of the time is over; a size that fails does not keep the others away."""
    left, names = 0, None
    for size, chosen in work:
        if clock.past(share):
            left += 1
            continue
        if chosen != names:
            table.head(chosen)
            names = chosen
        try:
            table.add(size, chosen)
        except Exception as reason:  # noqa: BLE001  the goals are told in any case
            print(f"left out: {size}: {type(reason).__name__}: {str(reason)[:110]}", flush=True)
    if left:
        print(f"left out for lack of time: {left} sizes; --minutes gives more", flush=True)


def after_the_table(place: Place, options: argparse.Namespace, clock: Clock) -> list[Table]:
    """The kernels beside cuDNN in exact float32 and in bfloat16, and beside TorchRL's."""
    tables: list[Table] = []
    sizes = (
        grid(tiny=True)
        if options.tiny
        else [Size(c, *of, e) for of in SHAPES for e in (20, 0) for c in ("lstm", "gru")]
    )
    for precision, dtype in (("ieee", torch.float32), ("tf32", torch.bfloat16)):
        if (precision, str(dtype)) != (options.precision, f"torch.{options.dtype}"):
            print(f"\n{dtype}, products in {precision if dtype is torch.float32 else 'that type'}")
            use_precision(precision)
            tables.append(Table(place, dtype, options.rounds, options.seconds))
            measure(tables[-1], ((size, ["triton", "full", "cuDNN, no resets", "pad"]) for size in sizes), clock, 0.9)
    use_precision(options.precision)
    print("\nbeside TorchRL, whose first call of a width tries several variants, for minutes")
    if importlib.util.find_spec("torchrl") is None:
        print("left out: TorchRL is not installed")
        return tables
    tables.append(Table(place, getattr(torch, options.dtype), options.rounds, options.seconds))
    measure(tables[-1], ((size, ["triton", *PEERS]) for size in sizes), clock, 1.0)
    return tables


def main(words: list[str]) -> int:
    """Measure; 0 also where there is nothing to measure, which it says."""
    options = parse(words)
    clock = Clock(None if options.whole else options.minutes)
    place = place_of(options)
    if isinstance(place, str):
        print(place)
        return 0
    warnings.simplefilter("ignore")
    if options.tiny:
        options.rounds, options.seconds = 1, 0.0
    use_precision(options.precision)
    print(f"{place.says()}; {options.dtype}, products in {options.precision}", flush=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        if not options.only_table:
            before_the_table(place, options, clock)
        table = Table(place, getattr(torch, options.dtype), options.rounds, options.seconds)
        measure(table, ((size, contenders(size, options)) for size in grid(tiny=options.tiny)), clock, 0.75)
        others = [] if options.only_table else after_the_table(place, options, clock)
    print()
    for line in [] if options.tiny else goals(table):
        print(line)
    for absent in (table, *others):
        for name, reason in absent.absent.items():
            print(f"left out: {name}: {reason}")
    if options.json:
        options.json.write_text(json.dumps([_plain(each) for each in (table, *others)], indent=1) + "\n")
    print(f"{time.monotonic() - clock.start:.0f} seconds")
    return 0


def _plain(table: Table) -> dict[str, object]:
    found = [{"size": vars(size), "times": {" | ".join(k): v for k, v in t.items()}} for size, t in table.found.items()]
    return {"dtype": str(table.dtype), "lines": found}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
