"""Buffers that several processes use."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from rl.core.errors import ArgumentError, BackendError, ContractError
from rl.replay import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorStorage,
)

STORAGES = {"memory": LazyTensorStorage, "memmap": LazyMemmapStorage}


def rows(count, stamp):
    """Rows whose elements are all equal."""
    value = torch.full((count,), float(stamp))
    return TensorDict(
        x=value,
        big=value.unsqueeze(-1).expand(count, 500).clone(),
        next=TensorDict(y=value.long(), batch_size=[count]),
        batch_size=[count],
    )


def is_whole(sample):
    value = sample["x"]
    return bool((sample["big"] == value.unsqueeze(-1)).all() and (sample["next", "y"] == value).all())


def write(buffer, first, batches, size):
    for number in range(batches):
        buffer.extend(rows(size, first + number))


forks = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork of a process with threads


@forks
@pytest.mark.parametrize(
    ("kind", "method", "size"),
    [("memory", "fork", 1), ("memory", "fork", 7), ("memmap", "fork", 7), ("memory", "spawn", 7)],  # spawning is slow
)
def test_several_processes_extend_while_one_samples(kind, method, size):
    buffer = TensorDictReplayBuffer(storage=STORAGES[kind](50), batch_size=32, shared=True)
    context, batches, count = multiprocessing.get_context(method), 300, 3 if method == "fork" else 1
    writers = [context.Process(target=write, args=(buffer, 1000 * number, batches, size)) for number in range(count)]
    for writer in writers:
        writer.start()
    samples = 0
    while any(writer.is_alive() for writer in writers):
        if len(buffer):
            assert is_whole(buffer.sample())
            samples += 1
    assert [writer.exitcode for writer in writers] == [0] * count
    assert samples
    assert (len(buffer), buffer.write_count) == (50, count * batches * size)
    assert buffer.writer.cursor == count * batches * size % 50
    for first in (0, 1000, 2000):  # each wrote in its own order
        own = [
            value for value in buffer[:].roll(-buffer.writer.cursor, 0)["x"].tolist() if first <= value < first + 1000
        ]
        assert own == sorted(own)
    buffer.empty()
    assert len(buffer) == 0


@pytest.mark.parametrize("kind", STORAGES)
def test_files_are_removed_with_the_buffer(kind):
    buffer = TensorDictReplayBuffer(storage=STORAGES[kind](50), shared=True)
    buffer.extend(rows(3, 1))
    folder = buffer.storage.scratch_dir
    assert (folder / "x.bin").is_file()
    del buffer
    assert not folder.exists()


def sample_all(buffer, queue):
    for _ in range(50):
        queue.put(is_whole(buffer.sample()))


@forks
def test_a_second_process_samples_prefetched_batches():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=8, prefetch=2, shared=True)
    buffer.extend(rows(20, 1))
    buffer.sample()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    reader = context.Process(target=sample_all, args=(buffer, queue))
    reader.start()
    for number in range(200):
        buffer.extend(rows(5, number))
        assert is_whole(buffer.sample())
    assert all(queue.get(timeout=60) for _ in range(50))
    reader.join()


def write_slowly(buffer, started):
    storage = buffer.storage
    whole = storage._tensors[1][1]

    class Slow:  # the second column; the process is killed while it is written
        device = torch.device("cpu")

        def __setitem__(self, index, values):
            started.set()
            time.sleep(60)
            whole[index] = values

    len(buffer)  # opens the rows
    storage._tensors[1] = (storage._tensors[1][0], Slow())
    buffer.extend(rows(4, 9))


@forks
def test_a_process_that_is_killed_leaves_neither_a_lock_nor_torn_rows():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=200, shared=True)
    buffer.extend(rows(10, 1))
    context = multiprocessing.get_context("fork")
    started = context.Event()
    writer = context.Process(target=write_slowly, args=(buffer, started))
    writer.start()
    assert started.wait(30)
    os.kill(writer.pid, signal.SIGKILL)
    with pytest.warns(UserWarning, match="a process ended while it wrote rows 0 to 3"):
        sample = buffer.sample()
    writer.join()
    assert is_whole(sample)
    assert (sample["x"] == 1).all()
    assert torch.equal(buffer.extend(rows(4, 2)), torch.arange(4))


def test_threads_and_processes_share_the_lock():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(30), batch_size=16, shared=True)
    threads = [threading.Thread(target=write, args=(buffer, 100 * number, 100, 3)) for number in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if len(buffer):
            assert is_whole(buffer.sample())
    assert buffer.write_count == 900


def test_checkpoints_of_shared_buffers_are_those_of_others(tmp_path):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4, shared=True)
    for stamp in range(3):
        buffer.extend(rows(4, stamp))
    buffer.dumps(tmp_path)
    for shared in (False, True):
        again = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4, shared=shared)
        again.loads(tmp_path)
        assert (again[:] == buffer[:]).all()
        assert (again.writer.cursor, again.write_count) == (2, 12)
        assert again.extend(rows(2, 5)).tolist() == [2, 3]


@forks
def test_another_layout_is_seen_by_the_other_processes():
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), shared=True)
    buffer.extend(rows(3, 1))
    context = multiprocessing.get_context("fork")
    inbox, outbox = context.Queue(), context.Queue()
    reader = context.Process(target=answer, args=(buffer, inbox, outbox))
    reader.start()
    for _ in range(2):
        inbox.put(True)
        assert outbox.get(timeout=60) == (["big", "next", "x"], 3)
        other = ReplayBuffer(storage=LazyTensorStorage(10))
        buffer.load_state_dict(other.state_dict())
        inbox.put(True)
        assert outbox.get(timeout=60) == ([], 0)
        other.extend(TensorDict(z=torch.arange(5), batch_size=[5]))
        buffer.load_state_dict(other.state_dict())
        inbox.put(True)
        assert outbox.get(timeout=60) == (["z"], 5)
        other = ReplayBuffer(storage=LazyTensorStorage(10))
        other.extend(rows(3, 1))
        buffer.load_state_dict(other.state_dict())
    inbox.put(False)
    reader.join()


def answer(buffer, inbox, outbox):
    while inbox.get():
        count = len(buffer)
        outbox.put((sorted(buffer[:].keys()) if count else [], count))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"storage": ListStorage(10)}, "LazyTensorStorage or LazyMemmapStorage, got ListStorage"),
        ({}, "got ListStorage"),
        ({"storage": TensorStorage(torch.arange(3))}, "got TensorStorage"),
        ({"sampler": PrioritizedSampler(10, 0.6, 0.4)}, "PrioritizedSampler does not see what other processes write"),
        ({"sampler": SliceSampler(slice_len=2)}, "SliceSampler does not see"),
        ({"sampler": SamplerWithoutReplacement()}, "SamplerWithoutReplacement does not see"),
    ],
)
def test_parts_that_cannot_be_shared_are_refused(arguments, text):
    if "sampler" in arguments:
        arguments = {"storage": LazyTensorStorage(10), **arguments}
    with pytest.raises(ArgumentError, match=text):
        ReplayBuffer(shared=True, **arguments)


def test_other_uses_are_refused():
    with pytest.raises(TypeError, match="priorities belong to one process"):
        TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=LazyTensorStorage(10), shared=True)
    filled = LazyTensorStorage(10)
    filled.set(torch.arange(3), rows(3, 1))
    with pytest.raises(ArgumentError, match="before the first batch"):
        ReplayBuffer(storage=filled, shared=True)
    with pytest.raises(BackendError, match="cannot be shared"):
        ReplayBuffer(storage=LazyTensorStorage(10, device="meta"), shared=True)
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), shared=True)
    with pytest.raises(ContractError, match=r"\['text'\] are no tensors"):
        buffer.extend(TensorDict(x=torch.arange(2), text=NonTensorStack("a", "b"), batch_size=[2]))
    buffer.extend(rows(2, 1))
    assert len(buffer) == 2
    huge = ReplayBuffer(storage=LazyTensorStorage(2**50), shared=True)
    with pytest.raises(BackendError, match="Choose a smaller max_size"):
        huge.extend(rows(2, 1))


@pytest.mark.slow
@forks
def test_no_row_is_torn_in_many_operations():
    # benchmarks/shared.py has 10^6 operations
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=64, shared=True)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write, args=(buffer, 10**6 * n, 20_000, 3)) for n in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if len(buffer):
            assert is_whole(buffer.sample())
    assert buffer.write_count == 180_000
