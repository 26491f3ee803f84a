"""Uniform sampling and extending of a replay buffer, against bare `index_select` and `index_copy_` on the same tensors.

The implementations run interleaved in one process, so that they meet the same machine. Medians of wall time and of the
thread's CPU time, and the ratio of the medians. One thread. TorchRL's buffer takes part where it is installed; with
``--full`` also those of Stable-Baselines3, cpprb and Tianshou, which return NumPy arrays (Stable-Baselines3 tensors).

    python benchmarks/uniform.py [--rows 1000000] [--batch 256] [--calls 3000] [--full]
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from prioritized_sides import torchrl_uniform
from tensordict import TensorDict

from rl.replay import LazyTensorStorage, ReplayBuffer

Times = dict[str, list[tuple[float, float]]]


def batch(rows: int) -> TensorDict:
    return TensorDict(
        observation=torch.randn(rows, 17),
        action=torch.randn(rows, 6),
        next=TensorDict(
            observation=torch.randn(rows, 17),
            reward=torch.randn(rows, 1),
            done=torch.zeros(rows, 1, dtype=torch.bool),
            terminated=torch.zeros(rows, 1, dtype=torch.bool),
            batch_size=[rows],
        ),
        batch_size=[rows],
    )


def interleave(sides: dict[str, Callable[[], object]], calls: int) -> Times:
    times: Times = {name: [] for name in sides}
    for turn in range(calls + 100):
        for name, call in sides.items():
            wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
            call()
            spent = (time.perf_counter_ns() - wall, time.thread_time_ns() - cpu)
            if turn >= 100:
                times[name].append((spent[0] / 1e3, spent[1] / 1e3))
    return times


def report(title: str, times: Times) -> None:
    medians = {name: [statistics.median(column) for column in zip(*t, strict=True)] for name, t in times.items()}
    print(title)
    base = medians["bare"]
    for name, (wall, cpu) in medians.items():
        print(f"  {name:12s} {wall:8.1f} us wall {cpu:8.1f} us CPU   / bare {wall / base[0]:6.2f} {cpu / base[1]:6.2f}")


def stable_baselines(data: TensorDict, size: int) -> Callable[[], object]:
    from gymnasium.spaces import Box
    from stable_baselines3.common.buffers import ReplayBuffer as Peer

    observation, action = (Box(-1, 1, (data[key].shape[1],)) for key in ("observation", "action"))
    buffer = Peer(len(data), observation, action, device="cpu")
    buffer.observations[:, 0], buffer.next_observations[:, 0] = data["observation"], data["next", "observation"]
    buffer.actions[:, 0], buffer.rewards[:] = data["action"], data["next", "reward"]
    buffer.full = True
    return lambda: buffer.sample(size)


def cpprb(data: TensorDict, size: int) -> Callable[[], object]:
    from cpprb import ReplayBuffer as Peer

    columns = {
        "obs": data["observation"],
        "act": data["action"],
        "next_obs": data["next", "observation"],
        "rew": data["next", "reward"],
        "done": data["next", "done"].float(),
        "terminated": data["next", "terminated"].float(),
    }
    buffer = Peer(len(data), {key: {"shape": column.shape[1]} for key, column in columns.items()})
    buffer.add(**{key: column.numpy() for key, column in columns.items()})
    return lambda: buffer.sample(size)


def tianshou(data: TensorDict, size: int) -> Callable[[], object]:
    from tianshou.data import Batch
    from tianshou.data import ReplayBuffer as Peer

    flag = data["next", "done"].flatten().numpy()
    buffer = Peer(len(data))
    row = {"obs": data["observation"], "act": data["action"], "obs_next": data["next", "observation"]}
    row = {key: column.numpy() for key, column in row.items()}
    row |= {"rew": data["next", "reward"].flatten().numpy(), "terminated": flag, "truncated": flag, "done": flag}
    buffer.add(Batch({key: column[0] for key, column in row.items()}, info={}))
    buffer.set_batch(Batch(row, info=Batch()))
    buffer._size = len(data)  # noqa: SLF001  rows one by one take minutes
    return lambda: buffer.sample(size)


def others(data: TensorDict, size: int) -> dict[str, Callable[[], object]]:
    """Buffers of other libraries with these rows, if they are installed."""
    found: dict[str, Callable[[], object]] = {}
    for name, make in (("SB3", stable_baselines), ("cpprb", cpprb), ("Tianshou", tianshou)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[name] = make(data, size)
                found[name]()
        except ImportError as problem:
            print(f"{name}: left out, {problem}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--full", action="store_true", help="all libraries that are installed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows, size = options.rows, options.batch

    buffer = ReplayBuffer(storage=LazyTensorStorage(rows), batch_size=size)
    data = batch(rows)
    buffer.extend(data)
    leaves = [data[key].clone() for key in data.keys(include_nested=True, leaves_only=True)]

    def bare_sample() -> list[torch.Tensor]:
        index = torch.randint(rows, (size,))
        return [leaf.index_select(0, index) for leaf in leaves]

    print(f"torch {torch.__version__}, {rows} rows of {len(leaves)} keys, batches of {size}, {options.calls} calls")
    theirs = torchrl_uniform(data, size)
    sides: dict[str, Callable[[], object]] = {"bare": bare_sample, "rl-replay": buffer.sample}
    if theirs is not None:
        sides["TorchRL"] = theirs.sample
    if options.full:
        sides |= others(data, size)
    report("sample", interleave(sides, options.calls))

    new = batch(size)
    parts = [new[key] for key in new.keys(include_nested=True, leaves_only=True)]
    cursor = 0

    def bare_extend() -> None:
        nonlocal cursor
        index = torch.arange(cursor, cursor + size).remainder_(rows)
        cursor = (cursor + size) % rows
        for leaf, part in zip(leaves, parts, strict=True):
            leaf.index_copy_(0, index, part)

    sides = {"bare": bare_extend, "rl-replay": lambda: buffer.extend(new)}
    if theirs is not None:
        sides["TorchRL"] = lambda: theirs.extend(new)
    report("extend", interleave(sides, options.calls))


if __name__ == "__main__":
    main()
