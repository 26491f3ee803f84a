"""Uniform samples of a `LazyMemmapStorage` whose files are in the page cache, against a `LazyTensorStorage`.

Both run interleaved in one process. Prints medians of wall time, and their ratio. One thread.

    python benchmarks/memmap.py [--rows 200000] [--batch 256] [--calls 1000] [--pixels 20000]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from tensordict import TensorDict

from rl.replay import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer


def steps(rows: int) -> TensorDict:
    following = TensorDict(
        observation=torch.randn(rows, 17),
        reward=torch.randn(rows, 1),
        done=torch.zeros(rows, 1, dtype=torch.bool),
        terminated=torch.zeros(rows, 1, dtype=torch.bool),
        batch_size=[rows],
    )
    return TensorDict(observation=torch.randn(rows, 17), action=torch.randn(rows, 6), next=following, batch_size=[rows])


def images(rows: int) -> TensorDict:
    return TensorDict(
        pixels=torch.zeros(rows, 84, 84, dtype=torch.uint8),
        action=torch.zeros(rows, dtype=torch.int64),
        batch_size=[rows],
    )


def measure(title: str, make: Callable[[int], TensorDict], rows: int, batch: int, calls: int) -> None:
    storages = {"memory": LazyTensorStorage(rows), "memmap": LazyMemmapStorage(rows)}
    buffers = {name: ReplayBuffer(storage=storage, batch_size=batch) for name, storage in storages.items()}
    data = make(min(rows, 10_000))
    for buffer in buffers.values():
        for _ in range(rows // len(data)):
            buffer.extend(data)
    new = data[:batch].clone()
    for what in ("sample", "extend"):
        times: dict[str, list[int]] = {name: [] for name in buffers}
        for turn in range(calls + 50):
            for name, buffer in buffers.items():
                begin = time.perf_counter_ns()
                buffer.sample() if what == "sample" else buffer.extend(new)
                if turn >= 50:
                    times[name].append(time.perf_counter_ns() - begin)
        memory, memmap = (statistics.median(times[name]) / 1e3 for name in ("memory", "memmap"))
        print(
            f"{title}, {what} of {batch}: memory {memory:.1f} us, memmap {memmap:.1f} us, ratio {memmap / memory:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--pixels", type=int, default=20_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measure("7 keys", steps, options.rows, options.batch, options.calls)
    measure("84x84 pixels", images, options.pixels, options.batch, options.calls)


if __name__ == "__main__":
    main()
