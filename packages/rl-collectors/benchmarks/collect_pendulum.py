"""`Collector` of Pendulum-v1 with an actor of SAC, 2 x 256 units, beside a loop by hand that keeps nothing.

Both sides run in one process, one after the other, many times; medians of thread CPU time in microseconds a step, and
of the ratios. The loop samples the squashed normal action that SAC draws.

    python packages/rl-collectors/benchmarks/collect_pendulum.py [--steps 2000] [--repeats 9] [--policy-backend native]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import gymnasium
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl.collectors import Collector
from rl.envs import GymEnv
from rl.modules import MLP, NormalParamExtractor, ProbabilisticActor, TanhNormal


def make_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(MLP(3, 2, num_cells=[256, 256], activation_class=nn.ReLU), NormalParamExtractor("exp"))


def by_hand(network: nn.Module, steps: int) -> Callable[[], None]:
    env = gymnasium.make("Pendulum-v1")

    def run() -> None:
        observation, _ = env.reset(seed=0)
        with torch.no_grad():
            for _ in range(steps):
                loc, scale = network(torch.from_numpy(observation))
                action = torch.normal(loc, scale).tanh() * 2
                observation, _, _, truncated, _ = env.step(action.numpy())
                if truncated:
                    observation, _ = env.reset()

    return run


def by_collector(network: nn.Module, steps: int, backend: str | None) -> Callable[[], object]:
    env = GymEnv("Pendulum-v1")
    env.set_seed(0)
    params = TensorDictModule(network, ["observation"], ["loc", "scale"])
    policy = ProbabilisticActor(params, ["loc", "scale"], spec=env.action_spec, distribution_class=TanhNormal)
    return Collector(env, policy, frames_per_batch=steps, policy_backend=backend).collect


def seconds(run: Callable[[], object]) -> float:
    begin = time.thread_time()
    run()
    return time.thread_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--policy-backend")
    options = parser.parse_args()
    torch.set_num_threads(1)
    network = make_network()
    hand, ours = by_hand(network, options.steps), by_collector(network, options.steps, options.policy_backend)
    ours()
    pairs = [(seconds(hand), seconds(ours)) for _ in range(options.repeats)]
    left, right = (statistics.median(pair[side] for pair in pairs) / options.steps * 1e6 for side in (0, 1))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"by hand {left:.1f}, Collector {right:.1f} microseconds a step, ratio of speeds {ratio:.2f}")


if __name__ == "__main__":
    main()
