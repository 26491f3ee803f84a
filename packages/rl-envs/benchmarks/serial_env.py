"""Cost of collecting through `SerialEnv(n, GymEnv)` relative to `GymEnv(num_envs=n)`, as a ratio of thread CPU times.

Both run interleaved in one process, with random actions; medians over the repeats.

    python packages/rl-envs/benchmarks/serial_env.py [--envs 16] [--repeats 15]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from rl.collectors import Collector
from rl.envs import EnvBase, GymEnv, SerialEnv

STEPS = 500  # of a batch


def make() -> GymEnv:
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def collector(env: EnvBase) -> Collector:
    env.set_seed(0)
    made = Collector(env, frames_per_batch=STEPS * env.batch_size.numel())
    made.collect()
    return made


def seconds(one: Collector) -> float:
    start = time.thread_time()
    one.collect()
    return time.thread_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    one = collector(GymEnv("CartPole-v1", num_envs=options.envs, categorical_action_encoding=True))
    serial = collector(SerialEnv(options.envs, make))
    pairs = [(seconds(one), seconds(serial)) for _ in range(options.repeats)]
    left, right = (statistics.median(column) / STEPS * 1e6 for column in zip(*pairs, strict=True))
    ratio = statistics.median(right_ / left_ for left_, right_ in pairs)
    print(f"{options.envs} envs: GymEnv(num_envs) {left:.1f} us a step, SerialEnv {right:.1f} us, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
