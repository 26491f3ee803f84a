"""Time of a weight update of 10 million parameters for two worker processes, beside copies of the same memory.

Claim: to publish and to acquire new weights costs at most 1.5 copies for each worker. Publisher and readers run one
after the other in one process here, which counts all copies; wall time, interleaved.

    python packages/rl-collectors/benchmarks/weight_update.py [--repeats 20]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from rl.collectors.weights import SharedWeights

WORKERS = 2


def seconds(call: Callable[[], object]) -> float:
    """Wall time of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    """Print medians and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    weights = {f"layer{i}": torch.randn(1000, 1000) for i in range(10)}
    readers = [{name: torch.zeros_like(value) for name, value in weights.items()} for _ in range(WORKERS)]
    store = SharedWeights(WORKERS)
    store.map(weights)
    versions = [0] * WORKERS

    def update() -> None:
        store.publish(weights)
        for i, reader in enumerate(readers):
            versions[i] = store.acquire(reader, i, versions[i])

    def copies() -> None:
        for reader in readers:
            for name, value in weights.items():
                reader[name].copy_(value)

    rows = [(seconds(update), seconds(copies)) for _ in range(repeats)]
    ours, floor = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"update: {1e3 * ours:.1f} ms; one copy for each of {WORKERS} workers: {1e3 * floor:.1f} ms")
    print(f"ratio {statistics.median(row[0] / row[1] for row in rows):.2f} (goal 1.5)")


if __name__ == "__main__":
    main()
