"""Pixels stored once (`compact=True`) and twice: memory, `extend` and `sample`, alternately in one process.

    python benchmarks/compact.py [--rows 20000] [--rounds 30]

Steps of eight environments with 84 x 84 x 4 bytes, whose episodes have about 200 steps. Prints medians of the CPU time
of the thread, and their ratio. The memory is what the process gained when the buffer was filled.
"""

from __future__ import annotations

import argparse
import gc
from itertools import cycle
from pathlib import Path
from statistics import median
from time import thread_time

import torch
from tensordict import TensorDict

from rl.replay import LazyTensorStorage, TensorDictReplayBuffer

ENVS = 8


def resident() -> int:
    """Bytes of memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def batches(steps: int, count: int) -> list[TensorDict]:
    """Batches ``[ENVS, steps]`` of consecutive steps; the first one follows the last one."""
    generator = torch.Generator().manual_seed(0)

    def frames() -> torch.Tensor:
        return torch.randint(256, (ENVS, 4, 84, 84), dtype=torch.uint8, generator=generator)

    first = now = frames()
    found = []
    for number in range(count):
        rows = []
        for step in range(steps):
            last = (number, step) == (count - 1, steps - 1)
            after, done = frames(), torch.rand(ENVS, 1, generator=generator) < 1 / 200
            after, done = (first, done & False) if last else (after, done)
            flags = {"done": done, "terminated": done, "reward": torch.zeros(ENVS, 1)}
            rows.append(
                TensorDict(
                    pixels=now,
                    action=torch.zeros(ENVS, dtype=torch.int64),
                    next=TensorDict(pixels=after, **flags, batch_size=[ENVS]),
                    batch_size=[ENVS],
                )
            )
            now = torch.where(done.view(-1, 1, 1, 1), frames(), after)
        found.append(torch.stack(rows, 1))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, cases = options.rows // (ENVS * 16) * ENVS * 16, {"plain": False, "compact": True}
    for steps in (1, 16):
        stream = batches(steps, 64 // steps)
        buffers, memory, streams = {}, {}, {name: cycle(stream) for name in cases}
        for name, compact in cases.items():
            gc.collect()
            before = resident()
            buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(rows, ndim=2, compact=compact), batch_size=256)
            while len(buffer) < rows:
                buffer.extend(next(streams[name]))
            buffers[name], memory[name] = buffer, resident() - before
        times: dict[tuple[str, str], list[float]] = {}
        for turn in range(options.rounds):
            for name in sorted(cases, reverse=bool(turn % 2)):
                for action in ("extend", "sample"):
                    start = thread_time()
                    for _ in range(4):
                        buffers[name].extend(next(streams[name])) if action == "extend" else buffers[name].sample()
                    times.setdefault((name, action), []).append((thread_time() - start) / 4)
        print(f"{rows} rows, extend [{ENVS}, {steps}], sample 256, medians of {options.rounds}")
        ratio = memory["compact"] / memory["plain"]
        print(f"  memory  {memory['plain'] / 2**20:9.0f} MiB {memory['compact'] / 2**20:9.0f} MiB  x {ratio:.2f}")
        for action in ("extend", "sample"):
            plain, compact = (median(times[name, action]) for name in cases)
            print(f"  {action}  {plain * 1e6:9.0f} us  {compact * 1e6:9.0f} us   x {compact / plain:.2f}")
        del buffers, buffer


if __name__ == "__main__":
    main()
