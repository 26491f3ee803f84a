"""Frames per second of `Collector` on CartPole-v1, beside a loop written by hand.

Both sides run in one process, one after the other, many times; medians of thread CPU time and of wall time, and the
median of the ratios. The network is 4-64-64-2 with tanh, the policy its argmax; with one-hot actions, the default of
`GymEnv`, and with integers. The back end of the policy is PyTorch, or that of ``--policy-backend``.

    python packages/rl-collectors/benchmarks/collect_cartpole.py [--frames 16000] [--repeats 7] [--envs 1 16]
        [--policy-backend native]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import gymnasium
import torch
from torch import nn

from rl.collectors import Collector
from rl.envs import GymEnv
from rl.modules import QValueActor

STEPS = 500  # of a batch


def make_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))


def by_hand(network: nn.Module, envs: int) -> Callable[[int], None]:
    """What one would write without any library: it keeps nothing of what it sees."""
    if envs == 1:
        env = gymnasium.make("CartPole-v1")

        def run_one(frames: int) -> None:
            observation, _ = env.reset(seed=0)
            with torch.no_grad():
                for _ in range(frames):
                    action = network(torch.from_numpy(observation)).argmax(-1).numpy()
                    observation, _, terminated, truncated, _ = env.step(int(action))
                    if terminated or truncated:
                        observation, _ = env.reset()

        return run_one
    vector = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * envs)

    def run(frames: int) -> None:
        observation, _ = vector.reset(seed=0)
        with torch.no_grad():
            for _ in range(frames // envs):
                action = network(torch.from_numpy(observation)).argmax(-1).numpy()
                observation, *_ = vector.step(action)

    return run


def by_collector(
    network: nn.Module, envs: int, backend: str | None, *, integers: bool, profile: bool = False
) -> tuple[Callable[[int], None], Collector]:
    env = GymEnv("CartPole-v1", categorical_action_encoding=integers, **({} if envs == 1 else {"num_envs": envs}))
    env.set_seed(0)
    policy = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    collector = Collector(env, policy, frames_per_batch=STEPS * envs, profile=profile, policy_backend=backend)
    collector.collect()

    def run(frames: int) -> None:
        for _ in range(frames // collector.frames_per_batch):
            collector.collect()

    return run, collector


def seconds(run: Callable[[int], None], frames: int) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.thread_time()
    run(frames)
    return time.perf_counter() - wall, time.thread_time() - cpu


def compare(envs: int, frames: int, repeats: int, backend: str | None, *, integers: bool) -> None:
    network = make_network()
    hand = by_hand(network, envs)
    ours, collector = by_collector(network, envs, backend, integers=integers)
    frames -= frames % collector.frames_per_batch
    pairs = [(seconds(hand, frames), seconds(ours, frames)) for _ in range(repeats)]
    for name, clock in (("wall", 0), ("thread CPU", 1)):
        left = statistics.median(frames / hand_[clock] for hand_, _ in pairs)
        right = statistics.median(frames / ours_[clock] for _, ours_ in pairs)
        ratio = statistics.median(hand_[clock] / ours_[clock] for hand_, ours_ in pairs)
        case = f"{envs:3d} envs  {'integers' if integers else 'one-hot':8s}  {name:10s}"
        print(f"{case}  by hand {left:9,.0f}  Collector {right:9,.0f} frames/s  ratio {ratio:.2f}  ({collector.path})")
    profiled, collector = by_collector(network, envs, backend, integers=integers, profile=True)
    before = dict(collector.stats)
    profiled(frames)
    steps = frames / envs
    parts = {name: (collector.stats[name] - before[name]) / steps * 1e6 for name in ("env", "policy", "rest")}
    print(f"{'':10s}microseconds a step: " + ", ".join(f"{name} {value:.1f}" for name, value in parts.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=16_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--envs", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--policy-backend")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for envs in options.envs:
        for integers in (False, True):
            compare(
                envs, max(options.frames, 2 * STEPS * envs), options.repeats, options.policy_backend, integers=integers
            )


if __name__ == "__main__":
    main()
