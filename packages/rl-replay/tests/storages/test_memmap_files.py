"""The files of a memory-mapped storage: names, other layouts, failures."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import CheckpointError
from rl.replay import LazyMemmapStorage, ReplayBuffer


def batch(count=3, **more):
    return TensorDict({"x": torch.arange(count), **more}, batch_size=[count])


def make(**arguments):
    return ReplayBuffer(storage=LazyMemmapStorage(10, **arguments))


def test_keys_that_would_share_a_file_name_have_files_of_their_own():
    odd = {"a": {"b": torch.zeros(3)}, "a.b": torch.ones(3), "c/d": torch.full((3,), 2.0), "c_d": torch.full((3,), 3.0)}
    data = TensorDict({**odd, "..": torch.full((3,), 4.0), "x" * 300: torch.full((3,), 5.0)}, batch_size=[3])
    buffer = make()
    buffer.extend(data)
    assert (buffer[:] == data).all()
    files = [path.resolve() for path in buffer.storage.scratch_dir.iterdir()]
    assert len(files) == 6
    assert {path.parent for path in files} == {buffer.storage.scratch_dir.resolve()}


def test_the_state_of_an_empty_buffer_leaves_one_that_can_be_filled(tmp_path):
    buffer = make(scratch_dir=tmp_path)
    buffer.extend(batch())
    buffer.load_state_dict(make().state_dict())
    assert not list(tmp_path.iterdir())
    buffer.extend(batch(4, y=torch.ones(4)))
    assert buffer[:]["y"].sum() == 4


def test_the_state_of_another_layout_replaces_the_files(tmp_path):
    other = make()
    other.extend(batch(4, y=torch.ones(4)))
    buffer = make(scratch_dir=tmp_path)
    buffer.extend(batch(2))
    buffer.load_state_dict(other.state_dict())
    assert (buffer[:] == batch(4, y=torch.ones(4))).all()
    assert len(list(tmp_path.iterdir())) == 2


def test_files_that_cannot_be_made_leave_the_storage_as_it_was(tmp_path, monkeypatch):
    buffer, calls = make(scratch_dir=tmp_path), []

    def full(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return torch_from_file(*args, **kwargs)

    torch_from_file = torch.from_file
    monkeypatch.setattr(torch, "from_file", full)
    with pytest.raises(OSError, match="No space left"):
        buffer.extend(batch(3, y=torch.ones(3)))
    assert len(buffer) == 0
    assert not list(tmp_path.iterdir())
    assert buffer.extend(batch(3, z=torch.ones(3))).tolist() == [0, 1, 2]


def test_files_of_another_storage_are_still_refused(tmp_path):
    first = make(scratch_dir=tmp_path)
    first.extend(batch())
    with pytest.raises(CheckpointError, match="exists already and is not overwritten"):
        make(scratch_dir=tmp_path).extend(batch())
    assert (first[:] == batch()).all()
