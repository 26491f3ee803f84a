"""Returns in C, against TorchRL where it is installed, and what moving the memory costs.

Microseconds for one call: CPU time of the thread, all implementations interleaved in one process, medians of the
rounds; one thread. `stream` reads and writes as many bytes as GAE does, 22 for each element, into outputs that are
used again: what no implementation can do without. `native` writes into new memory at each call, as TorchRL does;
`out=` into memory that is used again. Ratios are of CPU time, where nothing else is said.

    python benchmarks/returns.py [--rounds 11]
"""

from __future__ import annotations

import argparse
import statistics
import time
from importlib.metadata import PackageNotFoundError, version

import torch
from returns_sides import Batch, Sides, native, stream, their_functions, torchrl

from rl.native import isa

SHAPES = ((8, 128), (64, 1024), (4096, 128))
Pair = tuple[float, float]  # CPU time of the thread, wall time
COLUMNS = ("native", "native, out=", "native, time first, out=", "TorchRL vec", "TorchRL loop", "stream")


def refuse_different(sides: Sides) -> None:
    """All sides that form the same returns are to agree."""
    found = {name: run() for name, run in sides.items() if "first" not in name and name != "stream"}
    for other in found.values():
        torch.testing.assert_close(other, found["native"], rtol=1e-3, atol=1e-3)


def interleave(sides: Sides, rounds: int, elements: int) -> dict[str, Pair]:
    """Medians of each, in microseconds."""
    times: dict[str, list[Pair]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            least, most = (1, 20_000) if name.startswith("TorchRL") else (2, 400_000)
            repeat = max(least, most // elements)
            run()  # finds caches as another side left them
            cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
            for _ in range(repeat):
                run()
            spent = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
            times[name].append((spent[0] / repeat / 1e3, spent[1] / repeat / 1e3))
    return {name: (statistics.median(x for x, _ in t), statistics.median(x for _, x in t)) for name, t in times.items()}


def ratio(found: dict[str, Pair], above: str, below: str, clock: int = 0) -> str:
    return f"{found[above][clock] / found[below][clock]:,.3g}" if above in found and below in found else "-"


def row(what: str, shape: tuple[int, int], found: dict[str, Pair]) -> str:
    cells = [what, f"[{shape[0]}, {shape[1]}]"]
    cells += [f"{found[name][0]:,.1f}" if name in found else "-" for name in COLUMNS]
    for peer in ("TorchRL vec", "TorchRL loop"):
        cells.append(f"{ratio(found, peer, 'native')} ({ratio(found, peer, 'native', 1)})")
    cells.append(ratio(found, "native, out=", "stream"))
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        peer = f"torchrl {version('torchrl')}"
    except PackageNotFoundError:
        peer = "no torchrl"
    print(f"{isa()} instructions, torch {torch.__version__}, {peer}; wall time in brackets\n")
    their_functions()  # says whether it is there
    head = ["", "[B, T]", *COLUMNS, "TorchRL vec / native", "TorchRL loop / native", "native, out= / stream"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for shape in SHAPES:
        batch = Batch.draw(*shape)
        theirs = torchrl(batch)
        for what, ours in native(batch).items():
            sides = ours | theirs.get(what, {}) | {"stream": stream(batch)}
            refuse_different(sides)
            found = interleave(sides, rounds, shape[0] * shape[1])
            print(row(what, shape, found), flush=True)
    print("\ngoals: at least 100 times TorchRL's vec, 10 times its loop; at most 1.5 streams; at most 6 us at [8, 128]")


if __name__ == "__main__":
    main()
