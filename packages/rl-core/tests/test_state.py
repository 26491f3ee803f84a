"""`rl.core.state`: nested values as plain data, and plain data as a file."""

import json
import math
import struct
import threading

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch.testing import assert_close

from rl.core.errors import CheckpointError
from rl.core.state import load, pack, save, unpack


def entries():
    return TensorDict(
        {
            "a": torch.arange(6.0).reshape(2, 3),
            "next": TensorDict({"b": torch.ones(2, 3, 1)}, [2, 3], names=["env", "time"]),
            "text": NonTensorStack(*[NonTensorStack(*[NonTensorData(f"{i}{j}") for j in "abc"]) for i in "xy"]),
        },
        [2, 3],
        names=["env", "time"],
    )


def test_tensordicts_and_arrays_survive_packing_and_a_file(tmp_path):
    value = {
        ("a", "nested key"): [entries()],
        "rng": {"key": np.arange(4, dtype=np.uint32), "big": 2**100},
        "one": np.float64(0.5),
    }
    packed = pack(value, "Buffer")
    save(tmp_path / "x.safetensors", {"state": packed})
    for plain in (packed, load(tmp_path / "x.safetensors")["state"]):
        found = unpack(plain, "Buffer")
        (td,) = found["a", "nested key"]
        assert_close(td["a"], entries()["a"])
        assert td["text"].tolist() == entries()["text"].tolist()
        assert td["next"].names == ["env", "time"]
        assert td["next", "b"].shape == (2, 3, 1)
        assert found["rng"]["big"] == 2**100
        assert found["rng"]["key"].dtype == np.uint32
        assert found["rng"]["key"].tolist() == [0, 1, 2, 3]
        assert found["one"] == 0.5


def test_every_plain_value_survives_a_file(tmp_path):
    tensors = [
        torch.tensor(3, dtype=torch.int8),
        torch.arange(12.0).reshape(3, 4).T,
        torch.zeros(0, 3, dtype=torch.bool),
        torch.ones(3, dtype=torch.bfloat16),
        torch.tensor([1 + 2j, 3j]).conj(),
        torch.ones(5, requires_grad=True),
    ]
    state = {"tensors": tensors, 3: (None, True, [1.5, -math.inf], "text"), "pairs": {(1, 2): 0.1}, "empty": {}}
    save(tmp_path / "x", state)
    found = load(tmp_path / "x")
    for read, written in zip(found.pop("tensors"), state.pop("tensors"), strict=True):
        assert_close(read, written.detach().resolve_conj(), rtol=0, atol=0)
    assert found == state
    save(tmp_path / "nan", {"x": math.nan})
    assert math.isnan(load(tmp_path / "nan")["x"])


def test_the_file_is_safetensors(tmp_path):
    reader = pytest.importorskip("safetensors.torch")
    save(tmp_path / "x", {"a": torch.arange(3, dtype=torch.int8), "b": torch.ones(2, dtype=torch.float64)})
    found = reader.load_file(tmp_path / "x")
    assert_close(found, {"0:state.a": torch.arange(3, dtype=torch.int8), "1:state.b": torch.ones(2).double()})


def test_tensors_are_maps_that_outlive_the_file(tmp_path):
    path = tmp_path / "x"
    save(path, {"a": torch.arange(4)})
    first = load(path)["a"]
    first += 1  # private: the file stays
    save(path, {"a": torch.zeros(9)})
    path.unlink()
    assert first.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "state.a.* is a object"),
        (torch.ones(2, device="meta"), r"state.a.*a meta tensor of torch.float32 \[2\]"),
        (torch.eye(2).to_sparse(), "state.a.*to_dense"),
    ],
)
def test_what_is_no_plain_data_is_refused_and_the_old_file_stays(tmp_path, value, what):
    save(tmp_path / "x", {"old": 1})
    with pytest.raises(CheckpointError, match=what):
        save(tmp_path / "x", {"a": [value]})
    assert load(tmp_path / "x") == {"old": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    with pytest.raises(CheckpointError, match="Buffer"):
        pack({"a": object()}, "Buffer")


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    save(tmp_path / "x", {"old": 1})
    (tmp_path / ".x.000000000000.tmp").write_bytes(b"of a killed writer")  # removed even if the next write fails
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CheckpointError, match="No space left"):
        save(tmp_path / "x", {"new": 1})
    assert load(tmp_path / "x") == {"old": 1}
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("where", range(0, 400, 13))
def test_a_damaged_file_is_refused(tmp_path, where):
    path = tmp_path / "x"
    save(path, {"a": torch.arange(4), "b": [1, 2.0]})
    content = bytearray(path.read_bytes())
    content[where % len(content)] ^= 0x15
    path.write_bytes(content)
    try:
        found = load(path)
    except CheckpointError:
        return
    assert found["b"] == [1, 2.0]  # padding, or the name of a tensor
    assert_close(found["a"], torch.arange(4))


def test_short_missing_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "x"
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load(path)
    save(path, {"a": torch.arange(4)})
    whole = path.read_bytes()
    for size in (0, 3, 20, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            load(path)
    header = json.dumps({"__metadata__": {"format": "rl-state/9"}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(CheckpointError, match="'rl-state/9', this rl-core reads"):
        load(path)
    with pytest.raises(CheckpointError, match="Writer: the state is damaged"):
        unpack({"__state__": "tensordict"}, "Writer")


def test_a_file_of_the_earlier_trainers_is_read(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    structure = '["dict",[["step",3],["x",["float","0x1.8p+0"]],["w",["tensor","0:state.w"]]]]'
    metadata = {"format": "rl-checkpoint/1", "structure": structure, "sha256": ""}
    safetensors.save_file({"0:state.w": torch.ones(2)}, tmp_path / "x", metadata)
    found = load(tmp_path / "x")
    assert (found["step"], found["x"], found["w"].tolist()) == (3, 1.5, [1.0, 1.0])


def test_writers_and_readers_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "x"
    save(path, {"n": 0, "a": torch.zeros(1000)})
    (tmp_path / ".x.000000000000.tmp").write_bytes(b"of a killed writer")
    failures = []

    def write(n):
        for _ in range(10):
            save(path, {"n": n, "a": torch.full((1000,), float(n))})

    def read():
        for _ in range(40):
            found = load(path)
            if not bool((found["a"] == found["n"]).all()):
                failures.append(found["n"])

    threads = [threading.Thread(target=write, args=(n,)) for n in (1, 2, 3)] + [threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [left.name for left in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("width", [1, 16, 64, 65, 6_000])
def test_a_loaded_state_continues_a_generator(width, mapped, tmp_path):
    """torch reads the state of a generator as an aligned C struct from the start of its storage."""
    generator = torch.Generator().manual_seed(3)
    before = torch.zeros(width, dtype=torch.uint8)
    save(tmp_path / "x", {"before": before, "generator": generator.get_state()})
    loaded = load(tmp_path / "x", mapped=mapped)["generator"]
    assert loaded.data_ptr() % 16 == 0
    assert loaded.storage_offset() == 0
    other = torch.Generator()
    other.set_state(loaded)
    assert torch.equal(torch.rand(3, generator=other), torch.rand(3, generator=generator))


def test_copies_outlive_a_file_that_is_overwritten_in_place(tmp_path):
    save(tmp_path / "x", {"rows": torch.arange(10_000)})
    loaded = load(tmp_path / "x", mapped=False)
    (tmp_path / "x").write_bytes(b"")
    assert torch.equal(loaded["rows"], torch.arange(10_000))
