"""Generalized advantage estimates: the installed back end, both plain PyTorch forms, and a loop over time.

All sides alternate in one process on one thread; medians of CPU time of the thread. `chosen` is what plain PyTorch
takes by its cost model; it should be close to the smaller of `loop` and `scan`.

    python benchmarks/gae.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from rl.objectives.value._recurrence import loop_recurrence, recurrence_backend, scan_recurrence, torch_recurrence
from rl.objectives.value.functional import generalized_advantage_estimate, vec_generalized_advantage_estimate

SHAPES = ((8, 128), (16, 5), (64, 32), (4096, 16), (1, 2048), (64, 1024), (1024, 128), (4096, 128), (8, 16384))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    backend = recurrence_backend(torch.device("cpu"), torch.float32)
    print(f"installed back end: {backend!r}")
    print("microseconds; gae = whole estimate, others = the recurrence alone")
    print(f"{'[B, T]':>14} {'vec gae':>10} {'naive gae':>10} {'ratio':>6} {'chosen':>10} {'scan':>10} {'loop':>10}")
    for rows, steps in SHAPES:
        value, following, reward = (torch.randn(rows, steps, 1) for _ in range(3))
        done = torch.rand(rows, steps, 1) < 0.02
        terminated = done & (torch.rand(rows, steps, 1) < 0.5)
        args = (0.99, 0.95, value, following, reward, done, terminated)
        d, c = reward, torch.full_like(reward, 0.94).masked_fill(done, 0)
        sides = {
            "vec": lambda args=args: vec_generalized_advantage_estimate(*args),
            "naive": lambda args=args: generalized_advantage_estimate(*args),
            "chosen": lambda d=d, c=c: torch_recurrence(d, c, 1),
            "scan": lambda d=d, c=c: scan_recurrence(d, c, 1),
            "loop": lambda d=d, c=c: loop_recurrence(d, c, 1),
        }
        times = {name: [] for name in sides}
        for _ in range(rounds):
            for name, run in sides.items():
                start = time.thread_time()
                run()
                times[name].append((time.thread_time() - start) * 1e6)
        m = {name: statistics.median(x) for name, x in times.items()}
        print(
            f"{f'[{rows}, {steps}]':>14} {m['vec']:10.0f} {m['naive']:10.0f} {m['naive'] / m['vec']:6.1f}"
            f" {m['chosen']:10.0f} {m['scan']:10.0f} {m['loop']:10.0f}"
        )


if __name__ == "__main__":
    main()
