"""Rows of a buffer that several processes write, each row checked when it is sampled.

Each operation is a call of `extend` or `sample`. Prints operations, torn rows, and the time of an operation of a buffer
of one process.

    python benchmarks/shared.py [--operations 1000000] [--writers 3] [--storage memory|memmap] [--method fork|spawn]
"""

from __future__ import annotations

import argparse
import multiprocessing
import time

import torch
from tensordict import TensorDict

from rl.replay import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer

STORAGES = {"memory": LazyTensorStorage, "memmap": LazyMemmapStorage}


def rows(count: int, stamp: int) -> TensorDict:
    value = torch.full((count,), float(stamp))
    return TensorDict(x=value, big=value.unsqueeze(-1).expand(count, 64).clone(), batch_size=[count])


def write(buffer: TensorDictReplayBuffer, first: int, calls: int, size: int) -> None:
    torch.set_num_threads(1)
    for number in range(calls):
        buffer.extend(rows(size, (first + number) % 2**20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--writers", type=int, default=3)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--storage", choices=sorted(STORAGES), default="memory")
    parser.add_argument("--method", choices=("fork", "spawn"), default="fork")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for shared in (False, True):
        own = TensorDictReplayBuffer(storage=LazyTensorStorage(options.rows), batch_size=options.batch, shared=shared)
        own.extend(rows(options.size, 1))
        begin = time.perf_counter()
        for _ in range(5000):
            own.extend(rows(options.size, 1))
            own.sample()
        spent = (time.perf_counter() - begin) / 10_000
        print(f"one process, {'shared' if shared else 'own'} memory: {spent * 1e6:.1f} us an operation")

    storage = STORAGES[options.storage](options.rows)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=options.batch, shared=True)
    buffer.extend(rows(options.size, 0))
    context = multiprocessing.get_context(options.method)
    calls = options.operations // 2 // options.writers
    writers = [
        context.Process(target=write, args=(buffer, n * 2**18, calls, options.size)) for n in range(options.writers)
    ]
    begin = time.perf_counter()
    for writer in writers:
        writer.start()
    samples = torn = 0
    while any(writer.is_alive() for writer in writers) or samples + calls * options.writers < options.operations:
        sample = buffer.sample()
        torn += int((sample["big"] != sample["x"].unsqueeze(-1)).any(-1).sum())
        samples += 1
    spent = time.perf_counter() - begin
    written = buffer.write_count // options.size - 1
    assert [writer.exitcode for writer in writers] == [0] * options.writers
    assert written == calls * options.writers
    print(
        f"{options.writers} {options.method}ed writers, {options.storage}: {written} extends of {options.size} rows and"
        f" {samples} samples of {options.batch} in {spent:.0f} s, {torn} torn rows"
    )


if __name__ == "__main__":
    main()
