import math
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from rl.core.errors import CheckpointError
from rl.trainers import load_checkpoint, save_checkpoint
from rl.trainers._run.files import write_atomic

DTYPES = [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16]


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    return torch.randint(0, 2, shape).to(draw(st.sampled_from(DTYPES)))


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**200), 2**200), st.floats(), st.text(max_size=5), tensors()
)
keys = st.one_of(st.text(max_size=5), st.integers(-5, 5))
nodes = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
    ),
    max_leaves=8,
)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return a == b


@settings(max_examples=60, deadline=None)
@given(state=st.dictionaries(keys, nodes, max_size=4))
def test_what_is_loaded_is_what_was_saved(state, tmp_path_factory):
    path = tmp_path_factory.mktemp("c") / "x.safetensors"
    save_checkpoint(path, state)
    assert same(load_checkpoint(path), state)


def test_views_and_gradients_are_saved_by_value(tmp_path):
    whole = torch.arange(12.0).reshape(3, 4).requires_grad_()
    save_checkpoint(tmp_path / "x", {"a": whole.t(), "b": whole[0], "c": whole[0]})
    loaded = load_checkpoint(tmp_path / "x")
    assert torch.equal(loaded["a"], whole.t())
    loaded["b"].zero_()
    assert torch.equal(loaded["c"], whole[0])


def test_an_optimizer_goes_in_and_out(tmp_path):
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(layer.parameters(), fused=True)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    save_checkpoint(tmp_path / "x", {"optimizer": optimizer.state_dict()})
    other = torch.optim.Adam(layer.parameters(), fused=True)
    other.load_state_dict(load_checkpoint(tmp_path / "x")["optimizer"])
    assert same(other.state_dict(), optimizer.state_dict())


@pytest.fixture
def saved(tmp_path) -> Path:
    path = tmp_path / "x.safetensors"
    save_checkpoint(path, {"w": torch.arange(100.0), "n": 3})
    return path


@pytest.mark.parametrize("keep", [0, 7, 50, 0.5, -1], ids=str)
def test_a_truncated_file_is_refused(saved, keep):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        load_checkpoint(saved)


@pytest.mark.parametrize("place", [-1, -200], ids=str)
def test_a_flipped_bit_is_found(saved, place):
    content = bytearray(saved.read_bytes())
    content[place] ^= 1
    saved.write_bytes(content)
    with pytest.raises(CheckpointError, match="does not match its digest"):
        load_checkpoint(saved)


def test_a_changed_structure_is_found(saved):
    saved.write_bytes(saved.read_bytes().replace(b'[\\"n\\",3]', b'[\\"n\\",4]'))
    with pytest.raises(CheckpointError, match="does not match its digest"):
        load_checkpoint(saved)


def test_foreign_files_are_refused(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "foreign.safetensors")
    with pytest.raises(CheckpointError, match="not a checkpoint of rl-trainers"):
        load_checkpoint(tmp_path / "foreign.safetensors")
    save_file({"w": torch.ones(2)}, tmp_path / "future.safetensors", {"format": "rl-checkpoint/9"})
    with pytest.raises(CheckpointError, match="upgrade rl-trainers"):
        load_checkpoint(tmp_path / "future.safetensors")
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        load_checkpoint(tmp_path / "absent.safetensors")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        pytest.param({"a": [1, object()]}, r"state\.a\[1\] is a object", id="object"),
        pytest.param({"a": {(1, 2): 3}}, r"state\.a has the key \(1, 2\)", id="tuple-key"),
        pytest.param({True: 3}, "has the key True", id="bool-key"),
    ],
)
def test_what_cannot_be_saved_is_named_and_nothing_is_written(saved, state, message):
    before = saved.read_bytes()
    with pytest.raises(CheckpointError, match=message):
        save_checkpoint(saved, state)
    assert saved.read_bytes() == before


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("old")

    def fail(temporary):
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, fail)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x.txt"]
