"""Samples of 256 rows, and writes of 64, with each sampler: the CPU time relative to `RandomSampler`.

Blocks of 10 calls of each sampler run interleaved in one process, one thread. The last column is the first sample after
a write, for samplers that prepare something then.

    python benchmarks/samplers.py [--rows 300000] [--blocks 12]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from tensordict import TensorDict

from rl.replay import (
    ConsumingSampler,
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    Sequence,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    StalenessAwareSampler,
    TensorDictReplayBuffer,
)


def rows(count: int) -> TensorDict:
    step = torch.arange(count)
    nested = {"observation": torch.randn(count, 17), "done": (step % 200 == 199).unsqueeze(-1)}
    return TensorDict(
        {"observation": torch.randn(count, 17), "policy_version": step // 1000, "next": nested}, batch_size=[count]
    )


def buffers(size: int) -> dict[str, TensorDictReplayBuffer]:
    samplers: dict[str, Any] = {
        "RandomSampler": RandomSampler(),
        "SamplerWithoutReplacement": SamplerWithoutReplacement(),
        "PrioritizedSampler": PrioritizedSampler(size, 0.6, 0.4),
        "SliceSampler": SliceSampler(slice_len=8),
        "SliceSamplerWithoutReplacement": SliceSamplerWithoutReplacement(slice_len=8),
        "PrioritizedSliceSampler": PrioritizedSliceSampler(size, 0.6, 0.4, slice_len=8),
        "StalenessAwareSampler": StalenessAwareSampler(),
        "ConsumingSampler": ConsumingSampler(10**6),
    }
    found = {
        name: TensorDictReplayBuffer(storage=LazyTensorStorage(size), sampler=sampler, batch_size=256)
        for name, sampler in samplers.items()
    }
    found["Sequence(8)"] = TensorDictReplayBuffer(
        storage=LazyTensorStorage(size), sample_unit=Sequence(8), batch_size=32
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--blocks", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sides, data, new = buffers(options.rows), rows(options.rows), rows(64)
    for buffer in sides.values():
        buffer.extend(data)
        buffer.sample()
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in sides}
    for _ in range(options.blocks):
        for name, buffer in sides.items():
            marks = [time.thread_time()]
            for call, count in (
                (buffer.sample, 10),
                (lambda buffer=buffer: buffer.extend(new), 10),
                (buffer.sample, 1),
            ):
                for _ in range(count):
                    call()
                marks.append(time.thread_time())
            times[name].append(((marks[1] - marks[0]) / 10, (marks[2] - marks[1]) / 10, marks[3] - marks[2]))
    medians = {name: [statistics.median(column) for column in zip(*t, strict=True)] for name, t in times.items()}
    base = medians["RandomSampler"]
    print(f"torch {torch.__version__}, {options.rows} rows; sample, extend, first sample after a write")
    for name, found in medians.items():
        cells = (f"{took * 1e6:9.1f} us {took / of:6.2f} x" for took, of in zip(found, base, strict=True))
        print(f"{name:32s}", *cells)


if __name__ == "__main__":
    main()
