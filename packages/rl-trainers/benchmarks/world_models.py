"""An update of DreamerV3 and a plan of TD-MPC2 against their matrix products alone.

    python packages/rl-trainers/benchmarks/world_models.py [--rounds 5]

The products of one call are recorded, with shapes and strides, and run again on random numbers; both sides are timed
in turn, in one process and on one thread. Goals: 2.0 for the update, 1.5 for the plan.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rl.trainers import DreamerV3Config, TDMPC2Config, make_env
from rl.trainers.algorithms import dreamer, tdmpc2
from rl.trainers.loops.world_model import WorldModelUpdater, sequences_buffer, stored_keys

PRODUCTS = {torch.ops.aten.mm.default: 2, torch.ops.aten.addmm.default: 3, torch.ops.aten.bmm.default: 2}


class _Recorder(TorchDispatchMode):
    """Record the operands of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, list[torch.Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PRODUCTS:
            self.calls.append((func, [_like(x) for x in args[: PRODUCTS[func]]]))
        return func(*args, **(kwargs or {}))


def _like(x: torch.Tensor) -> torch.Tensor:
    if 0 in x.stride():
        return torch.randn(x.shape)
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(torch.randn(x.shape))


def products_of(call: Callable[[], Any]) -> Callable[[], None]:
    """Return what runs the matrix products of a call."""
    recorder = _Recorder()
    with recorder:
        call()

    def run() -> None:
        with torch.no_grad():
            for func, operands in recorder.calls:
                func(*operands)

    return run


def update() -> Callable[[], Any]:
    """Return one update of size 1M with 16 sequences of 64 steps."""
    config = DreamerV3Config(env="pendulum", size="1M")
    env = make_env("pendulum", 16, seed=0)
    policy = dreamer.dreamer_v3_policy(config, env)
    steps = env.rollout(65, break_when_any_done=False)
    flag = torch.zeros_like(steps["next", "done"])
    steps["is_init"] = flag
    for key, width in (("state", policy.state_dim), ("belief", policy.belief_dim)):
        steps[key] = torch.zeros(16, 65, width, dtype=torch.bfloat16)
    losses = dreamer.dreamer_v3_loss(config, env, policy)
    buffer = sequences_buffer(config, losses)
    buffer.extend(steps.select(*stored_keys(env, policy, losses)).set(("next", "break"), flag))
    updater = WorldModelUpdater(config, losses, buffer)
    return updater._step  # noqa: SLF001 - one update, without its schedule


def plan() -> Callable[[], Any]:
    """Return one plan of the published size: 512 candidates, 6 iterations, 3 steps."""
    config = TDMPC2Config(env="pendulum")
    env = make_env("pendulum", 1, seed=0)
    policy = tdmpc2.policy(config, env)
    root = env.reset()
    root["plan"] = torch.zeros(1, 3, 1)
    return lambda: policy(root.copy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    for name, make in (("plan of tdmpc2, 5M", plan), ("update of dreamer-v3, 1M", update)):
        call = make()
        call()
        products = products_of(call)
        products()
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            for side, run in zip(times, (call, products), strict=True):
                begin = time.process_time()
                run()
                side.append(time.process_time() - begin)
        whole, alone = map(median, times)
        print(f"{name}: {whole * 1e3:.1f} ms, products {alone * 1e3:.1f} ms, ratio {whole / alone:.2f}")


if __name__ == "__main__":
    main()
