"""Memory of `MultiAsyncCollector` over a million frames with weight updates: it stays flat.

Prints the resident memory of the parent and its workers, in MiB, ten times; the last line compares the second half of
the run with the first after a warm-up of a tenth.

    python packages/rl-collectors/benchmarks/soak.py [--frames 1000000]
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from pathlib import Path

import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl.collectors import MultiAsyncCollector
from rl.testing import CountingEnv


def resident(pid: int) -> float:
    """Resident memory of a process that is its own (not shared), in MiB."""
    fields = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    private = [int(line.split()[1]) for line in fields if line.startswith("Private")]
    return sum(private) / 1024


def children() -> list[int]:
    """Numbers of the child processes."""
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def main() -> None:
    """Print memory over the run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    frames = parser.parse_args().frames
    net = nn.Sequential(nn.Linear(1, 256), nn.Tanh(), nn.Linear(256, 2))
    policy = TensorDictModule(lambda x: net(x).argmax(-1), in_keys=["observation"], out_keys=["action"])
    policy.net = net
    make = partial(CountingEnv, 50, batch_size=(16,))
    found: list[float] = []
    begin, updates = time.perf_counter(), 0
    with MultiAsyncCollector([make] * 2, policy, frames_per_batch=1024, total_frames=frames) as collector:
        for count, batch in enumerate(collector):
            with torch.no_grad():
                net[0].weight.add_(0.001 * float(batch["next", "reward"].mean()))
            collector.update_policy_weights_()
            updates += 1
            if count % max(1, frames // 1024 // 20) == 0:
                found.append(resident(os.getpid()) + sum(resident(pid) for pid in children()))
                print(f"{collector.collected_frames:>9} frames  {found[-1]:8.1f} MiB", flush=True)
        exact = collector.collected_frames
    steady = found[len(found) // 10 :]
    half = len(steady) // 2
    growth = max(steady[half:]) - max(steady[:half])
    seconds = time.perf_counter() - begin
    print(f"{exact} frames, {updates} weight updates, {seconds:.0f} s")
    print(f"growth of the largest memory from the first to the second half: {growth:+.1f} MiB")


if __name__ == "__main__":
    main()
