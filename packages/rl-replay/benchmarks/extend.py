"""Writing 1, 64 and 1,000 rows, and frames, into a replay buffer, against other libraries.

Blocks of 20 calls of each implementation run interleaved in one process. Medians over blocks of the wall time and of
the CPU time of the thread for a call, one thread.
"bare" is `index_copy_` on the same tensors. TorchRL and Stable-Baselines3 take part where they are installed; the
latter stores NumPy arrays of one observation, action and reward for each environment, here one environment per row.

    python benchmarks/extend.py [--rows 1000000] [--calls 3000]
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from prioritized_sides import torchrl_uniform
from tensordict import TensorDict
from uniform import Times, batch, report

from rl.replay import LazyTensorStorage, PrioritizedSampler, ReplayBuffer, SliceSampler

Sides = dict[str, Callable[[], object]]
BLOCK = 20


def blocks(sides: Sides, calls: int) -> Times:
    """Microseconds of a call, wall and CPU, in blocks: as in a loop, code and rows of one side are in the caches."""
    times: Times = {name: [] for name in sides}
    for turn in range(calls // BLOCK + 5):
        for name, call in sides.items():
            wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
            for _ in range(BLOCK):
                call()
            spent = (time.perf_counter_ns() - wall, time.thread_time_ns() - cpu)
            if turn >= 5:
                times[name].append((spent[0] / 1e3 / BLOCK, spent[1] / 1e3 / BLOCK))
    return times


def bare(leaves: list[torch.Tensor], new: TensorDict) -> Callable[[], None]:
    parts = [new[key] for key in new.keys(include_nested=True, leaves_only=True)]
    rows, size = len(leaves[0]), len(new)
    cursor = 0

    def call() -> None:
        nonlocal cursor
        index = torch.arange(cursor, cursor + size).remainder_(rows)
        cursor = (cursor + size) % rows
        for leaf, part in zip(leaves, parts, strict=True):
            leaf.index_copy_(0, index, part)

    return call


def stable_baselines(rows: int, new: TensorDict) -> Callable[[], object] | None:
    """`add` of its buffer with one environment for each row; None if it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from gymnasium.spaces import Box
            from stable_baselines3.common.buffers import ReplayBuffer as Peer
    except ImportError as problem:
        print(f"Stable-Baselines3: left out, {problem}")
        return None
    envs = len(new)
    observation, action = (Box(-1, 1, (new[key].shape[1],)) for key in ("observation", "action"))
    buffer = Peer(rows, observation, action, device="cpu", n_envs=envs)
    data: list[Any] = [new["observation"], new["next", "observation"], new["action"]]
    arrays = [part.numpy() for part in (*data, new["next", "reward"].flatten(), new["next", "done"].flatten())]
    infos = [{} for _ in range(envs)]
    return lambda: buffer.add(*arrays, infos)


def frames(calls: int) -> None:
    def make(rows: int) -> TensorDict:
        return TensorDict(pixels=torch.zeros(rows, 4, 84, 84, dtype=torch.uint8), batch_size=[rows])

    buffer, leaves = ReplayBuffer(storage=LazyTensorStorage(4000)), [make(4000)["pixels"]]
    for size in (1, 64):
        new = make(size)
        sides: Sides = {"bare": bare(leaves, new), "rl-replay": lambda new=new: buffer.extend(new)}
        report(f"extend by {size} stacks of 4 frames 84 x 84", blocks(sides, calls))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--calls", type=int, default=3000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows, data = options.rows, batch(options.rows)
    samplers = {
        "rl-replay": lambda: None,
        "by priority": lambda: PrioritizedSampler(rows, 0.6, 0.4),
        "slices": lambda: SliceSampler(slice_len=8),
    }
    own = {name: ReplayBuffer(storage=LazyTensorStorage(rows), sampler=make()) for name, make in samplers.items()}
    for buffer in own.values():
        buffer.extend(data)
    theirs = torchrl_uniform(data, 256)
    leaves = [data[key].clone() for key in data.keys(include_nested=True, leaves_only=True)]
    print(f"torch {torch.__version__}, {rows} rows of {len(leaves)} keys, {options.calls} calls")
    for size in (1, 64, 1000):
        new = batch(size)
        sides: Sides = {"bare": bare(leaves, new)}
        sides |= {name: lambda buffer=buffer: buffer.extend(new) for name, buffer in own.items()}  # noqa: B023
        if theirs is not None:
            sides["TorchRL"] = lambda: theirs.extend(new)  # noqa: B023
        peer = stable_baselines(rows, new)
        if peer is not None:
            sides["SB3's add"] = peer
        report(f"extend by {size} rows", blocks(sides, options.calls))
    frames(options.calls // 10)


if __name__ == "__main__":
    main()
