"""Checkpoints of a process that is killed at any time."""

from __future__ import annotations

import multiprocessing
import random
import time

import pytest
import torch
from tensordict import TensorDict

from rl.replay import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer


def make(folder, *, in_place):
    storage = LazyMemmapStorage(2000, scratch_dir=folder, existsok=True) if in_place else LazyTensorStorage(2000)
    return ReplayBuffer(storage=storage)


def write(buffer, stamp):
    for _ in range(4):
        buffer.extend(TensorDict(x=torch.full((500, 50), float(stamp)), batch_size=[500]))


def dump_on(folder, in_place, first, dumped):
    buffer = make(folder, in_place=in_place)
    for stamp in range(first, first + 100_000):
        write(buffer, stamp)
        buffer.dumps(folder)
        dumped.value = stamp


def check(folder, kills, *, in_place):
    """Kill a writer at random times; the checkpoint is always a whole one, the last or the one after it."""
    rng, context = random.Random(0), multiprocessing.get_context("fork")
    first, dumped, last = make(folder, in_place=in_place), context.Value("q", 0), 0.0
    write(first, 0)
    first.dumps(folder)
    del first
    for kill in range(1, kills + 1):
        writer = context.Process(target=dump_on, args=(folder, in_place, kill * 100_000, dumped))
        writer.start()
        while kill % 2 and dumped.value < kill * 100_000:  # every second one is killed after its first dump
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.1))
        writer.kill()
        writer.join()
        buffer = make(folder, in_place=in_place)
        buffer.loads(folder)
        found = buffer[:]["x"]
        assert len(found) == 2000
        assert (found == found[:, :1]).all()  # later writes change rows in place, but by whole rows
        if not in_place:
            assert (found == found[0, 0]).all()
            assert found[0, 0] >= max(last, dumped.value)
            last = float(found[0, 0])
    left = {path.name for path in folder.iterdir()} - {"state.safetensors", "x.bin", "layout.json", "counters"}
    assert len(left) <= 1  # what an interrupted writer left is removed by the next one


warns = pytest.mark.filterwarnings("ignore:LazyMemmapStorage. a process ended")
both = pytest.mark.parametrize("in_place", [False, True])


@warns
@both
def test_some_kills(tmp_path, in_place):
    check(tmp_path, 8, in_place=in_place)


@pytest.mark.slow
@warns
@both
def test_two_hundred_kills(tmp_path, in_place):
    check(tmp_path, 200, in_place=in_place)
