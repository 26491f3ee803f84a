"""Prioritized sampling, and updates of priorities, against bare `index_select` on the same tensors.

All sides run in turns in one process, so that they meet the same machine. Medians of wall time and of the thread's
CPU time; ratios to the bare gather. One thread. The native tree takes part where rl-native is installed.

    python benchmarks/prioritized.py [--rows 1000000] [--batch 256] [--calls 2000]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from tensordict import TensorDict

from rl.core.errors import BackendError
from rl.replay import LazyTensorStorage, PrioritizedSampler, TensorDictPrioritizedReplayBuffer
from rl.replay._torch_tree import PrefixTree, WideTree

Times = dict[str, list[tuple[float, float]]]


def batch(rows: int) -> TensorDict:
    """Seven leaves."""
    return TensorDict(
        observation=torch.randn(rows, 17),
        action=torch.randn(rows, 6),
        sample_log_prob=torch.randn(rows),
        next=TensorDict(
            observation=torch.randn(rows, 17),
            reward=torch.randn(rows, 1),
            done=torch.zeros(rows, 1, dtype=torch.bool),
            terminated=torch.zeros(rows, 1, dtype=torch.bool),
            batch_size=[rows],
        ),
        batch_size=[rows],
    )


def in_turns(sides: dict[str, Callable[[], object]], calls: int) -> Times:
    times: Times = {name: [] for name in sides}
    for turn in range(calls + 100):
        for name, call in sides.items():
            wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
            call()
            spent = (time.perf_counter_ns() - wall, time.thread_time_ns() - cpu)
            if turn >= 100:
                times[name].append((spent[0] / 1e3, spent[1] / 1e3))
    return times


def report(title: str, times: Times, against: str) -> None:
    medians = {name: [statistics.median(column) for column in zip(*t, strict=True)] for name, t in times.items()}
    print(title)
    base = medians[against]
    for name, (wall, cpu) in medians.items():
        print(f"  {name:32s} {wall:8.1f} us wall {cpu:8.1f} us CPU   {wall / base[0]:6.2f}  {cpu / base[1]:6.2f}")


def backends() -> list[str]:
    try:
        PrioritizedSampler(1, 0.6, 0.4, backend="native")
    except BackendError:
        return ["torch"]
    return ["native", "torch"]


def whole_sample(options: argparse.Namespace) -> None:
    rows, size = options.rows, options.batch
    data = batch(rows)
    leaves = [data[key].clone() for key in data.keys(include_nested=True, leaves_only=True)]

    def bare() -> list[torch.Tensor]:
        index = torch.randint(rows, (size,))
        return [leaf.index_select(0, index) for leaf in leaves]

    samples: dict[str, Callable[[], object]] = {"bare": bare}
    updates: dict[str, Callable[[], object]] = {}
    index, error = torch.randint(rows, (size,)), torch.rand(size)
    for backend in backends():
        buffer = TensorDictPrioritizedReplayBuffer(
            alpha=0.6, beta=0.4, storage=LazyTensorStorage(rows), batch_size=size, backend=backend
        )
        buffer.extend(data)
        buffer.update_priority(torch.arange(rows), torch.rand(rows))
        sampler, storage = buffer.sampler, buffer.storage
        samples[f"buffer.sample, {backend}"] = buffer.sample
        samples[f"sampler.sample, {backend}"] = lambda sampler=sampler, storage=storage: sampler.sample(storage, size)
        updates[f"sampler.update_priority, {backend}"] = lambda sampler=sampler: sampler.update_priority(index, error)
    report(f"sample({size}) of {len(leaves)} leaves", in_turns(samples, options.calls), "bare")
    report(f"update_priority of {size}", in_turns(updates, options.calls), next(iter(updates)))


def torch_trees(options: argparse.Namespace) -> None:
    """Each after an update, so that nothing is left over from the draw before, against numpy's way."""
    import numpy as np

    for rows in (10_000, 100_000, 200_000, options.rows):
        priority = torch.rand(rows) + 0.1
        sides: dict[str, Callable[[], object]] = {}
        index, new = torch.randint(rows, (options.batch,)), torch.rand(options.batch)
        array = priority.numpy().copy()

        def numpy_way(array=array, place=index.numpy, values=new.numpy) -> object:  # noqa: ANN001
            array[place()] = values()
            running = array.cumsum(dtype=np.float64)
            found = running.searchsorted(np.random.rand(options.batch) * running[-1], side="right")
            return array[found], array.min()

        sides["numpy cumsum and searchsorted"] = numpy_way
        for kind in (PrefixTree, WideTree):
            tree = kind(rows)
            tree.update(torch.arange(rows), priority)

            def step(tree=tree, index=index, new=new) -> object:  # noqa: ANN001
                tree.update(index, new)
                return tree.sample(options.batch), tree.min()

            sides[kind.__name__] = step
        report(
            f"update and sample {options.batch} of {rows}",
            in_turns(sides, max(options.calls // 10, 20)),
            "numpy cumsum and searchsorted",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--calls", type=int, default=2000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {options.rows} rows, batches of {options.batch}, {options.calls} calls")
    whole_sample(options)
    torch_trees(options)


if __name__ == "__main__":
    main()
