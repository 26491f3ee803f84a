"""The files of a memory-mapped storage: names, other layouts, failures."""

import gc
import os
import tempfile

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from rl.core.errors import ArgumentError, CheckpointError, ShapeError
from rl.replay import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer


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
    files = [path.resolve() for path in buffer.storage.scratch_dir.glob("*.bin")]
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
    assert len(list(tmp_path.glob("*.bin"))) == 2


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


def ring(folder, **arguments):
    return TensorDictReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=folder, **arguments), batch_size=4)


@pytest.mark.parametrize("ndim", [1, 2])
def test_rows_of_an_earlier_storage_are_opened(tmp_path, ndim):
    data = TensorDict({"x": torch.arange(6.0).reshape(3, 2), "next": {"y": torch.ones(3, 2, 4)}}, batch_size=[3, 2])
    first = ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path, ndim=ndim))
    first.extend(data)
    again = ReplayBuffer(storage=LazyMemmapStorage(10, scratch_dir=tmp_path, ndim=ndim, existsok=True))
    assert (again[:] == first[:]).all()
    again.extend(data)  # after the rows that are there
    assert len(again) == min(2 * len(first), 10)
    assert again.writer.cursor == 2 * len(first) % 10
    with pytest.raises(CheckpointError, match=rf"max_size=12, ndim={ndim}.*max_size=10"):
        LazyMemmapStorage(12, scratch_dir=tmp_path, ndim=ndim, existsok=True)
    empty = LazyMemmapStorage(12, scratch_dir=tmp_path / "new", existsok=True)
    assert len(empty) == 0


def test_damaged_files_are_not_opened(tmp_path):
    ring(tmp_path).extend(batch())
    whole = (tmp_path / "x.bin").read_bytes()
    (tmp_path / "x.bin").write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match=r"x\.bin has 79 bytes, expected 80"):
        ring(tmp_path, existsok=True)
    (tmp_path / "layout.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"layout\.json is damaged"):
        ring(tmp_path, existsok=True)
    text = NonTensorStack(*[f"row {row}" for row in range(3)])
    ring(tmp_path / "text").extend(batch(text=text))
    with pytest.raises(CheckpointError, match=r"\['text'\] .* no tensors"):
        ring(tmp_path / "text", existsok=True)


@pytest.mark.parametrize("text", [False, True])
def test_a_dump_into_the_own_folder_has_no_copy_of_the_rows(tmp_path, text):
    def rows(start):
        more = {"text": NonTensorStack(*[f"row {start + row}" for row in range(7)])} if text else {}
        return TensorDict({"x": torch.arange(start, start + 7), "big": torch.ones(7, 10_000), **more}, batch_size=[7])

    first = ring(tmp_path)
    for start in (0, 7):
        first.extend(rows(start))
    first.dumps(tmp_path)
    assert (tmp_path / "state.safetensors").stat().st_size < 10_000
    for folder in (None,) if text else (None, tmp_path):  # another folder, and the same
        second = ring(folder, existsok=True)
        second.loads(tmp_path)
        assert second[:]["x"].tolist() == [10, 11, 12, 13, 4, 5, 6, 7, 8, 9]
        assert (second.writer.cursor, second.write_count) == (4, 14)
        if text:
            assert second[:].get("text").tolist()[:2] == ["row 10", "row 11"]
    assert torch.equal(second.extend(rows(14)), torch.arange(4, 11) % 10)
    with pytest.raises(CheckpointError, match="existsok=True opens"):
        ring(tmp_path).loads(tmp_path)
    other = TensorDictReplayBuffer(storage=LazyTensorStorage(10))
    with pytest.raises(
        CheckpointError, match="its storage is a LazyTensorStorage, the state is of a LazyMemmapStorage"
    ):
        other.loads(tmp_path)


def test_a_dump_into_a_folder_that_will_be_removed_is_a_copy(tmp_path):
    buffer = ring(tmp_path, auto_cleanup=True)
    buffer.extend(batch(5))
    buffer.dumps(tmp_path)
    del buffer
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]
    again = ring(None)
    again.loads(tmp_path)
    assert again[:]["x"].tolist() == [0, 1, 2, 3, 4]


def test_a_row_whose_write_was_interrupted_is_replaced(tmp_path):
    buffer = ring(tmp_path)
    buffer.extend(batch(10))
    counters = buffer.storage.files.counters
    counters[3], counters[4] = 9, 2  # a write of rows 9 and 0 that has not ended
    with pytest.warns(UserWarning, match="a process ended while it wrote rows 0 to 9"):
        again = ring(tmp_path, existsok=True)
    assert again[:]["x"].tolist() == [1, 1, 2, 3, 4, 5, 6, 7, 8, 1]
    assert ring(tmp_path, existsok=True)[:]["x"].tolist() == [1, 1, 2, 3, 4, 5, 6, 7, 8, 1]
    with pytest.raises(ShapeError):
        buffer.extend(TensorDict(x=torch.zeros(2, 3, dtype=torch.int64), batch_size=[2]))
    assert counters[4] == 0  # a batch that is refused was not begun


def test_files_stay_when_a_forked_process_drops_the_storage(tmp_path):
    buffer = ring(tmp_path, auto_cleanup=True)
    buffer.extend(batch())
    process = os.fork()
    if process == 0:
        del buffer
        gc.collect()
        os._exit(0)
    os.waitpid(process, 0)
    assert buffer[:]["x"].tolist() == [0, 1, 2]
    assert (tmp_path / "x.bin").is_file()


def test_a_storage_that_is_refused_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ArgumentError, match="max_size"):
        LazyMemmapStorage(0)
    assert list(tmp_path.iterdir()) == []
