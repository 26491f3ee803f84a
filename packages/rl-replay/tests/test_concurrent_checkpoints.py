"""Several threads and processes write and read checkpoints in one folder."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
import torch

import rl.replay.buffers._checkpoint as checkpoint
from rl.core.errors import CheckpointError
from rl.replay import LazyTensorStorage, ReplayBuffer

ROWS = 2000


def make(value=None):
    buffer = ReplayBuffer(storage=LazyTensorStorage(ROWS))
    if value is not None:
        buffer.extend(torch.full((ROWS,), value))
    return buffer


def loaded(folder):
    """The one value that all rows of a checkpoint have."""
    buffer = make()
    buffer.loads(folder)
    (value,) = set(buffer[:].tolist())
    return value


def files(folder):
    return sorted(path.name.split("-")[0] for path in folder.iterdir())


WRITER = """
import sys
import torch
from rl.replay import LazyTensorStorage, ReplayBuffer
buffer = ReplayBuffer(storage=LazyTensorStorage(2000))
buffer.extend(torch.full((2000,), int(sys.argv[2])))
print("ready", flush=True)
while True:
    buffer.dumps(sys.argv[1])
"""


@contextmanager
def writing(folder, values):
    """Processes that write checkpoints into `folder` until they are killed."""
    with ExitStack() as stack:
        commands = [[sys.executable, "-c", WRITER, str(folder), str(value)] for value in values]
        writers = [stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE)) for command in commands]
        for writer in writers:
            stack.callback(writer.kill)
        for writer in writers:
            assert writer.stdout.readline().strip() == b"ready"
        yield


def test_two_processes_write_while_another_one_reads_until_they_are_killed(tmp_path):
    make(0).dumps(tmp_path)
    seen, stop = set(), time.monotonic() + 60
    with writing(tmp_path, (1, 2)):
        while not {1, 2} <= seen and time.monotonic() < stop:
            seen.add(loaded(tmp_path))
    assert {1, 2} <= seen <= {0, 1, 2}
    assert loaded(tmp_path) in (1, 2)
    (tmp_path / "tensors-0123456789ab.bin").write_bytes(b"unfinished")
    (tmp_path / "manifest.json.0123456789ab").write_text("{")
    (tmp_path / "tensors-of-mine.bin").write_bytes(b"of no checkpoint")
    make(3).dumps(tmp_path)  # the locks of the dead are free, and what they left is removed
    assert loaded(tmp_path) == 3
    assert files(tmp_path) == [".lock", "manifest.json", "tensors", "tensors"]


def test_threads_with_buffers_of_their_own_write_into_one_folder(tmp_path):
    buffers = [make(value) for value in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(buffer.dumps, tmp_path) for _ in range(10) for buffer in buffers]:
            done.result()
    assert loaded(tmp_path) in range(4)
    assert files(tmp_path) == [".lock", "manifest.json", "tensors"]


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    make(1).dumps(tmp_path)
    checksum, replaced = checkpoint._checksum, []

    def slow(path):
        if len(replaced) < 2:
            replaced.append(path)
            make(1 + len(replaced)).dumps(tmp_path)
        return checksum(path)

    monkeypatch.setattr(checkpoint, "_checksum", slow)
    assert loaded(tmp_path) == 3
    (path,) = tmp_path.glob("tensors-*")
    path.unlink()
    with pytest.raises(CheckpointError, match="missing or damaged"):
        loaded(tmp_path)


def test_a_folder_that_cannot_be_locked_is_refused(tmp_path, monkeypatch):
    def none(file, *, on):
        raise OSError("no locks available")

    monkeypatch.setattr(checkpoint, "_lock", none)
    with pytest.raises(CheckpointError, match="cannot be locked against other writers"):
        make(1).dumps(tmp_path)
