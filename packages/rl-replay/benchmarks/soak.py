"""Memory of a process that extends a full buffer 10^7 times.

Prints the resident memory after each tenth of the calls, and fails if it grows by more than a mebibyte after the first
one. Every hundredth call also samples and updates priorities; trajectories, priorities and generations are followed.

    python benchmarks/soak.py [--calls 10000000] [--sampler random|prioritized|slices|prioritized-slices]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from tensordict import TensorDict

from rl.replay import (
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    RoundRobinWriter,
    SliceSampler,
    TensorDictReplayBuffer,
)

ROWS = 10_000
SAMPLERS = {
    "random": RandomSampler,
    "prioritized": lambda: PrioritizedSampler(ROWS, 0.6, 0.4),
    "slices": lambda: SliceSampler(slice_len=4),
    "prioritized-slices": lambda: PrioritizedSliceSampler(ROWS, 0.6, 0.4, slice_len=4),
}


def resident() -> float:
    """Mebibytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=10_000_000)
    parser.add_argument("--sampler", choices=SAMPLERS, default="random")
    options = parser.parse_args()
    torch.set_num_threads(1)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(ROWS),
        sampler=SAMPLERS[options.sampler](),
        writer=RoundRobinWriter(track_generations=True),
        batch_size=32,
    )
    batches = []
    for number in range(101):  # episodes of changing lengths
        done = torch.rand(1, 1, generator=torch.Generator().manual_seed(number)) < 0.05
        nested = TensorDict(observation=torch.randn(1, 4), done=done, batch_size=[1])
        batches.append(TensorDict(observation=torch.randn(1, 4), next=nested, batch_size=[1]))
    begin, first, memory = time.perf_counter(), 0.0, 0.0
    tenth = max(options.calls // 10, 1)
    for call in range(1, options.calls + 1):
        buffer.extend(batches[call % 101])
        if call % 100 == 0 and call >= 1000:
            sample = buffer.sample()
            if "priori" in options.sampler:
                buffer.update_priority(sample["index"], torch.rand(len(sample)))
        if call % tenth == 0:
            memory = resident()
            first = first or memory
            took = (time.perf_counter() - begin) / call * 1e6
            print(f"{call:>10} extends: {memory:8.1f} MiB, {took:6.1f} us each with samples", flush=True)
    if memory > first + 1:
        raise SystemExit(f"memory grew by {memory - first:.1f} MiB")


if __name__ == "__main__":
    main()
