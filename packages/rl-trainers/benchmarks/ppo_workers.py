"""Wall time of PPO on HalfCheetah-v5 with worker processes against one process.

The two sides take turns; medians of whole runs without evaluations, and the ratio. Needs ``rl-envs[mujoco]``.

Run: ``./x bench packages/rl-trainers/benchmarks/ppo_workers.py [--frames 100000] [--workers 2] [--repeats 3]``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

from rl.trainers import PPOConfig, train_ppo

ENVS = 8


def seconds(workers: int, frames: int) -> float:
    config = PPOConfig(
        env="HalfCheetah-v5", num_envs=ENVS, workers=workers, total_frames=frames, eval_every=10 * frames, threads=1
    )
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        train_ppo(config, out=folder + "/run", display="none")
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    pairs = [(seconds(0, options.frames), seconds(options.workers, options.frames)) for _ in range(options.repeats)]
    one, several = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(alone / together for alone, together in pairs)
    print(f"{options.frames} frames of {ENVS} environments: one process {one:.1f} s")
    print(f"{options.workers} worker processes: {several:.1f} s; {ratio:.2f} times as fast")


if __name__ == "__main__":
    main()
