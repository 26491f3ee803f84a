"""What rl-core adds to start-up: its import over torch and tensordict, and the commands that list.

Every figure is that of a fresh interpreter, the sides interleaved. Run it with
`./x bench packages/rl-core/benchmarks/start_up.py`.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time

ROUNDS = 9
# Within one process: what comes on top is small beside the scatter of torch's own import.
ADDED = """
import time, torch, tensordict
start = time.process_time()
import rl.core
if {all}:
    [getattr(rl.core, name) for name in rl.core.__all__]
print(1e3 * (time.process_time() - start))
"""
SIDES = {
    "python": ["-c", "pass"],
    "torch and tensordict": ["-c", "import torch, tensordict"],
    "rl --help": ["-m", "rl.core", "--help"],
    "rl plugins": ["-m", "rl.core", "plugins"],
}


def measure(arguments: list[str]) -> tuple[float, float]:
    """CPU and wall milliseconds of one interpreter."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1e3 * cpu, 1e3 * wall


def main() -> None:
    """Print medians."""
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in SIDES}
    for _ in range(ROUNDS):
        for name, arguments in SIDES.items():
            runs[name].append(measure(arguments))
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in runs.items()}
    print(f"{'':32} {'CPU ms':>8} {'wall ms':>8}")
    for name, (cpu, wall) in medians.items():
        print(f"{name:32} {cpu:8.0f} {wall:8.0f}")
    print(f"over torch and tensordict: import rl.core {added(every_name=False):.1f} ms", end=", ")
    print(f"with all of its names {added(every_name=True):.1f} ms (CPU)")


def added(*, every_name: bool) -> float:
    """Median CPU milliseconds on top of torch and tensordict."""
    code = ADDED.format(all=every_name)
    runs = [subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True) for _ in range(5)]
    return statistics.median(float(run.stdout) for run in runs)


if __name__ == "__main__":
    main()
