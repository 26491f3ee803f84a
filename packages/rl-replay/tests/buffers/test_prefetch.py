"""Batches prepared ahead, and several threads."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ContractError
from rl.replay import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement, TensorStorage

# a writer that waits for a batch is met between two steps of the queue
from rl.replay.buffers._pipeline import PrefetchQueue


def wait_until(condition):
    end = time.monotonic() + 5
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    assert condition()


def buffer_of(rows=100, **arguments):
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(rows), batch_size=5, generator=torch.Generator().manual_seed(0), **arguments
    )
    buffer.extend(TensorDict({"x": torch.arange(rows)}, [rows]))
    return buffer


@pytest.mark.parametrize("n", [1, 2, 5])
def test_exactly_n_batches_are_prepared_ahead(n):
    made = []

    def count(td):
        made.append(threading.current_thread())
        return td

    buffer = buffer_of(prefetch=n, transform=count)
    for taken in range(1, 6):
        buffer.sample()
        wait_until(lambda taken=taken: len(made) == taken + n)
    time.sleep(0.01)
    assert len(made) == 5 + n
    assert threading.main_thread() not in made


@pytest.mark.parametrize("n", [1, 4])
def test_prefetched_batches_are_those_without_prefetch(n):
    ahead, direct = buffer_of(prefetch=n), buffer_of()
    for _ in range(10):
        assert torch.equal(ahead.sample()["x"], direct.sample()["x"])


def test_batches_on_their_way_hold_the_rows_of_their_draw():
    buffer = buffer_of(prefetch=3)
    buffer.sample()
    buffer.extend(TensorDict({"x": torch.full((100,), -1)}, [100]))
    ahead = [buffer.sample()["x"] for _ in range(4)]
    assert all((x >= 0).all() for x in ahead[:3])
    assert (ahead[3] == -1).all()


def test_another_batch_size_is_drawn_at_once():
    buffer = buffer_of(prefetch=2)
    buffer.sample()
    buffer.extend(TensorDict({"x": torch.full((100,), -1)}, [100]))
    assert (buffer.sample(7)["x"] == -1).all()


def test_an_error_in_a_thread_surfaces_where_the_batch_is_taken():
    fail = threading.Event()

    def transform(td):
        if fail.is_set():
            raise ValueError("a broken transform")
        return td

    buffer = buffer_of(prefetch=2, transform=transform)
    buffer.sample()
    wait_until(lambda: all(item.future.done() for item in buffer._flight._queue))
    fail.set()
    buffer.sample()
    buffer.sample()
    with pytest.raises(ValueError, match="a broken transform"):
        buffer.sample()
    fail.clear()
    for _ in range(3):
        try:
            buffer.sample()
        except ValueError:
            continue
    assert len(buffer.sample()) == 5


def test_an_empty_buffer_with_prefetch_says_so_and_recovers():
    buffer = ReplayBuffer(storage=LazyTensorStorage(5), batch_size=2, prefetch=2)
    with pytest.raises(ContractError, match="empty"):
        buffer.sample()
    buffer.extend(torch.arange(3))
    assert len(buffer.sample()) == 2
    buffer.empty()
    with pytest.raises(ContractError, match="empty"):
        buffer.sample()


def test_threads_that_write_and_sample_never_see_torn_rows():
    rows, writers, samplers, rounds = 64, 2, 3, 150
    buffer = ReplayBuffer(storage=LazyTensorStorage(rows), batch_size=16, prefetch=2)

    def batch(value):
        x = torch.full((10, 8), value)
        return TensorDict({"x": x, "next": {"x": x + 1}}, [10])

    buffer.extend(batch(0))

    def write(base):
        for i in range(rounds):
            buffer.extend(batch(base + i))

    def sample(size):
        for _ in range(rounds):
            td = buffer.sample(size)
            assert len(td) == (size or 16)
            assert (td["x"] == td["x"][:, :1]).all()
            assert (td["next", "x"] == td["x"] + 1).all()

    with ThreadPoolExecutor(writers + samplers) as pool:
        jobs = [pool.submit(write, 1000 * i) for i in range(writers)]
        jobs += [pool.submit(sample, [None, 16, 9][i]) for i in range(samplers)]
        for job in jobs:
            job.result(timeout=30)
    assert buffer.write_count == 10 + writers * rounds * 10


def test_threads_share_a_pass():
    buffer = ReplayBuffer(
        storage=TensorStorage(torch.arange(1000)), sampler=SamplerWithoutReplacement(), batch_size=10, prefetch=3
    )
    with ThreadPoolExecutor(4) as pool:
        drawn = torch.cat([job.result() for job in [pool.submit(buffer.sample) for _ in range(100)]])
    assert sorted(drawn.tolist()) == list(range(1000))


def test_a_transform_runs_on_samples_and_not_on_stored_rows():
    buffer = buffer_of(transform=lambda td: td.set("y", td["x"] + 1))
    sample = buffer.sample()
    assert torch.equal(sample["y"], sample["x"] + 1)
    assert "y" not in buffer[:].keys()


def test_a_batch_that_was_taken_before_it_read_its_rows_is_waited_for():
    queue, release = PrefetchQueue(1), threading.Event()
    queue.submit(lambda: release.wait(10), lambda rows: (rows, {}), last=False)
    future, _ = queue.take()
    writer = threading.Thread(target=queue.wait_gathered)
    writer.start()
    writer.join(0.05)
    assert writer.is_alive()
    release.set()
    writer.join(10)
    assert not writer.is_alive()
    assert future.result(10)[0]
