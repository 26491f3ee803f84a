import os

import pytest
import torch

from rl.core.errors import CheckpointError
from rl.trainers import load_checkpoint, save_checkpoint

# a write that fails halfway, as on a full disk
from rl.trainers._storage import write_atomic


def test_a_checkpoint_restores_an_optimizer(tmp_path):
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(layer.parameters(), fused=True)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    save_checkpoint(tmp_path / "x", {"optimizer": optimizer.state_dict()})
    other = torch.optim.Adam(layer.parameters(), fused=True)
    other.load_state_dict(load_checkpoint(tmp_path / "x")["optimizer"])
    expected, loaded = optimizer.state_dict(), other.state_dict()
    assert loaded["param_groups"] == expected["param_groups"]
    for index, state in expected["state"].items():
        for name, value in state.items():
            assert torch.equal(loaded["state"][index][name], value)


def test_errors_of_reading_say_what_to_use_instead(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        load_checkpoint(path)
    save_checkpoint(path, {"w": torch.arange(100.0)})
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"x\.safetensors is damaged.*use another checkpoint of .*train again"):
        load_checkpoint(path)
    path.write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    with pytest.raises(CheckpointError, match="has the format None"):
        load_checkpoint(path)


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
