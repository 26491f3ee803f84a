"""The `GAE` module with a value network, against its forward passes alone and TorchRL's `GAE`.

Observations ``[8, 128, 17]``, a network 17-64-64-1. `forward passes` evaluates the network on all states and on all
next states. With `shifted` one pass over ``T + 1`` states is enough. Each call makes a shallow copy of the batch, so
that none finds the results of another; the forward passes copy it too. The implementations run interleaved in one
process on one thread; medians of CPU time of the thread and of wall time, in microseconds; ratios of CPU time, and of
wall time in brackets.

    python benchmarks/gae_module.py [--rounds 31]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from peers import Sides, interleave, ratio, row, table, torchrl_values
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl.objectives.value import GAE

ROWS, STEPS, FEATURES = 8, 128, 17


def batch() -> TensorDict:
    states = torch.randn(ROWS, STEPS + 1, FEATURES)
    done = torch.rand(ROWS, STEPS, 1) < 0.02
    after = TensorDict(
        observation=states[:, 1:].contiguous(),
        reward=torch.randn(ROWS, STEPS, 1),
        done=done,
        terminated=done & (torch.rand(ROWS, STEPS, 1) < 0.5),
        batch_size=[ROWS, STEPS],
    )
    return TensorDict(observation=states[:, :-1].contiguous(), next=after, batch_size=[ROWS, STEPS])


def with_torchrl(critic: TensorDictModule, data: TensorDict) -> Sides:
    """Its module with either form of the estimate; none if it is not installed."""
    theirs = torchrl_values()
    if theirs is None:
        return {}
    sides: Sides = {}
    for name, options in {"vectorized": {"vectorized": True}, "loop": {"vectorized": False}}.items():
        module = theirs.GAE(gamma=0.99, lmbda=0.95, value_network=critic, **options)
        sides[f"TorchRL GAE, {name}"] = lambda module=module: module(data.copy())
    return sides


def advantage_of(side: Callable[[], Any]) -> torch.Tensor:
    return side()["advantage"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}")
    net = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    critic = TensorDictModule(net, in_keys=["observation"], out_keys=["state_value"])
    data = batch()
    before, reached = data["observation"], data["next", "observation"]
    ours: dict[str, Any] = {
        "GAE": GAE(gamma=0.99, lmbda=0.95, value_network=critic),
        "GAE, shifted": GAE(gamma=0.99, lmbda=0.95, value_network=critic, shifted=True),
    }

    @torch.no_grad()
    def passes() -> object:
        return data.copy(), net(before), net(reached)

    sides: Sides = {"forward passes": passes}
    sides |= {name: lambda module=module: module(data.copy()) for name, module in ours.items()}
    sides |= with_torchrl(critic, data)
    for module in list(sides.values())[1:]:
        torch.testing.assert_close(advantage_of(module), advantage_of(sides["GAE"]), rtol=1e-3, atol=1e-3)
    found = interleave(sides, rounds)
    table(["", "us CPU", "us wall", "/ forward passes", "/ GAE"])
    for name, (cpu, wall) in found.items():
        ratios = [ratio(found, name, "forward passes"), ratio(found, name, "GAE")]
        print(row([name, f"{cpu:,.0f}", f"{wall:,.0f}", *ratios]))
    print("\ngoal: at most 1.2 times the forward passes")


if __name__ == "__main__":
    main()
