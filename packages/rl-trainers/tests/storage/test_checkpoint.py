import os
import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn

from rl.core.errors import ArgumentError, CheckpointError
from rl.trainers import Checkpoint, PPOConfig, load_checkpoint, save_checkpoint, train_ppo

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


class Counter:
    """A part that is no module."""

    def __init__(self, count=0):
        self.count = count

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def parts():
    policy = nn.Linear(2, 3)
    return {"policy": policy, "optimizer": torch.optim.Adam(policy.parameters()), "counter": Counter()}


def stepped(own):
    own["optimizer"].zero_grad()
    own["policy"](torch.randn(4, 2)).square().sum().backward()
    own["optimizer"].step()
    own["counter"].count += 1
    return own


def drawn():
    return random.random(), np.random.rand(), torch.rand(()).item()


def test_a_loop_continues_with_its_parts_values_and_random_numbers(tmp_path):
    own = stepped(parts())
    checkpoint = Checkpoint(tmp_path, own)
    assert not checkpoint.exists()
    checkpoint.save(100, episodes=7, scales=np.array([1.0, 2.0], np.float32), history=[(1, "a")])
    expected = drawn(), [one.clone() for one in stepped(own)["policy"].parameters()]
    drawn()
    other = parts()
    report = Checkpoint(tmp_path, other).load()
    assert (report.frames, report.taken) == (100, ("policy", "optimizer", "counter", "rng"))
    assert report.not_taken == {}
    assert report.values["episodes"] == 7
    assert report.values["history"] == [(1, "a")]
    assert report.values["scales"].dtype == np.float32
    assert drawn() == expected[0]
    stepped(other)
    assert all(torch.equal(a, b) for a, b in zip(other["policy"].parameters(), expected[1], strict=True))
    assert other["counter"].count == 2


@pytest.mark.gpu
def test_the_generators_of_cuda_continue(tmp_path):
    checkpoint = Checkpoint(tmp_path, {})
    checkpoint.save(0)
    expected = torch.rand(3, device="cuda")
    checkpoint.load()
    assert torch.equal(torch.rand(3, device="cuda"), expected)


def test_the_newest_and_the_best_are_kept(tmp_path):
    own = parts()
    checkpoint = Checkpoint(tmp_path, own, keep_last=2, best="loss", mode="min")
    for step, loss in enumerate([5.0, float("nan"), 3.0, 3.0, 4.0], start=1):
        own["counter"].count = step
        checkpoint.save(step * 10, loss=loss)
    assert sorted(os.listdir(tmp_path)) == [
        "best.safetensors", "frames-40.safetensors", "frames-50.safetensors", "last.safetensors"
    ]  # fmt: skip
    for source, count in (("best", 4), (40, 4), ("last", 5), (tmp_path / "frames-50.safetensors", 5)):
        checkpoint.load(source)
        assert own["counter"].count == count, source


def test_a_continued_loop_knows_the_best_so_far(tmp_path):
    own = {"counter": Counter()}
    first = Checkpoint(tmp_path, own, best="score")
    first.save(1, score=9.0)
    own["counter"].count = 1
    first.save(2, score=5.0)
    second = Checkpoint(tmp_path, own, best="score")
    second.load()
    second.save(3, score=7.0)
    assert second.load("best").values == {"score": 9.0}
    assert own["counter"].count == 0


def test_a_best_checkpoint_that_a_kill_prevented_is_made_up_for(tmp_path):
    checkpoint = Checkpoint(tmp_path, {"counter": Counter(3)}, best="score")
    checkpoint.save(1, score=1.0)
    checkpoint.save(2, score=2.0)
    checkpoint.best.unlink()
    Checkpoint(tmp_path, {"counter": Counter()}, best="score").load()
    assert checkpoint.load("best").frames == 2


def test_a_continued_loop_drops_what_it_trains_again(tmp_path):
    checkpoint = Checkpoint(tmp_path, parts(), keep_last=5)
    for frames in (10, 20, 30):
        checkpoint.save(frames)
    checkpoint.load(10)
    checkpoint.save(15)
    assert sorted(os.listdir(tmp_path)) == ["frames-10.safetensors", "frames-15.safetensors", "last.safetensors"]


def test_what_fits_is_taken_and_the_rest_reported(tmp_path):
    save = Checkpoint(tmp_path, {"policy": nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4)), "old": Counter(5)})
    save.save(7, seed=3)
    saved = [one.clone() for one in save.parts["policy"].parameters()]
    policy, optimizer = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 6), nn.Linear(6, 1)), Counter(2)
    kept = [one.clone() for one in policy.parameters()]
    checkpoint = Checkpoint(tmp_path, {"policy": policy, "optimizer": optimizer})
    report = checkpoint.load(partial=True)
    assert report.taken == ("policy", "rng")
    assert report.values == {"seed": 3}
    assert report.not_taken == {
        "old": "no part here",
        "optimizer": "not in the file",
        "policy.1.weight": "has the shape [4, 3] in the file, [6, 3] here",
        "policy.1.bias": "has the shape [4] in the file, [6] here",
        "policy.2.weight": "not in the file",
        "policy.2.bias": "not in the file",
    }
    assert "not policy.2.bias: not in the file" in str(report)
    found = list(policy.parameters())
    assert all(map(torch.equal, found, [*saved[:2], *kept[2:]]))
    assert optimizer.count == 2


def test_a_part_that_raises_is_left_out_of_a_partial_load(tmp_path):
    Checkpoint(tmp_path, {"counter": nn.Linear(1, 1), "policy": Counter(1)}).save(1)
    other = {"counter": Counter(4), "policy": Counter(4)}
    report = Checkpoint(tmp_path, other).load(partial=True)
    assert report.not_taken == {"counter": "KeyError: 'count'"}
    assert (other["counter"].count, other["policy"].count) == (4, 1)


def test_single_parts_can_be_loaded(tmp_path):
    own = parts()
    checkpoint = Checkpoint(tmp_path, own)
    checkpoint.save(1)
    own["counter"].count = 8
    torch.manual_seed(5)
    expected = torch.rand(())
    torch.manual_seed(5)
    assert checkpoint.load(names=["policy"]).taken == ("policy",)
    assert own["counter"].count == 8
    assert torch.equal(torch.rand(()), expected)  # its generator was left alone


def test_a_part_that_does_not_fit_is_named(tmp_path):
    Checkpoint(tmp_path, {"policy": nn.Linear(2, 3)}).save(1)
    with pytest.raises(CheckpointError, match=r"its part 'policy' raised RuntimeError: .*size mismatch"):
        Checkpoint(tmp_path, {"policy": nn.Linear(2, 4)}).load()
    counter = Counter(4)
    with pytest.raises(CheckpointError, match=r"lacks the parts \['critic'\]"):
        Checkpoint(tmp_path, {"policy": nn.Linear(2, 4), "critic": counter}).load()


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(tmp_path):
    counter = Counter(1)
    checkpoint = Checkpoint(tmp_path, {"counter": counter}, keep_last=1)
    checkpoint.save(1)
    counter.count = lambda: 3
    with pytest.raises(CheckpointError, match=r"state\.counter\.count is a function"):
        checkpoint.save(2)
    assert sorted(os.listdir(tmp_path)) == ["frames-1.safetensors", "last.safetensors"]
    checkpoint.load()
    assert counter.count == 1


def test_a_pickle_is_rejected_without_running_it(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    checkpoint = Checkpoint(tmp_path, {"counter": Counter()})
    checkpoint.last.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        checkpoint.load()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("call", "said"), [
    (lambda to: Checkpoint(to, {"frames": 3}), r"the part 'frames' of a checkpoint is a int.*save\(frames, frames="),
    (lambda to: Checkpoint(to, {"rng": Counter()}), "called 'rng', which the file needs"),
    (lambda to: Checkpoint(to, {}, keep_last=-1), "keep_last"),
    (lambda to: Checkpoint(to, {}, mode="best"), "mode"),
    (lambda to: Checkpoint(to, {"a": Counter()}).save(1, a=2), "a value of a checkpoint is called 'a', as a part is"),
    (lambda to: Checkpoint(to, {"a": Counter()}).load(names=["b"]), "no part 'b'; it has a, rng"),
])  # fmt: skip
def test_wrong_arguments_are_explained(call, said, tmp_path):
    with pytest.raises(ArgumentError, match=said):
        call(tmp_path)


def test_the_checkpoints_of_a_run_are_the_same_files(tmp_path):
    config = PPOConfig(total_frames=128, num_envs=2, frames_per_batch=64, minibatch_size=32, epochs=1, num_cells=(8,),
                       eval_episodes=1, final_eval_episodes=1, loggers=("csv",))  # fmt: skip
    folder = train_ppo(config, out=tmp_path / "run", display="none").folder
    state = load_checkpoint(folder / "checkpoints/last.safetensors")
    critic = nn.Linear(1, 1)
    checkpoint = Checkpoint(folder / "checkpoints", {"critic": critic})
    report = checkpoint.load(partial=True)
    assert report.frames == report.values["run"]["frames"] == 128
    assert report.not_taken["policy"] == "no part here"
    best = Checkpoint(folder / "checkpoints", {}).load("best")
    assert best.values["eval_return_mean"] == state["run"]["best"]["eval_return_mean"]


def test_a_run_of_an_earlier_version_continues_exactly(tmp_path):
    """Until rl-trainers 0.4 the generators were part of ``run``, and a file said nothing of itself."""
    config = PPOConfig(total_frames=256, num_envs=2, frames_per_batch=64, minibatch_size=32, epochs=1, num_cells=(8,),
                       eval_episodes=1, final_eval_episodes=1, loggers=("csv",))  # fmt: skip
    for name in ("new", "old"):
        train_ppo(config, out=tmp_path / name, display="none", should_stop=lambda frames: frames >= 128)
    path = tmp_path / "old" / "checkpoints" / "last.safetensors"
    state = load_checkpoint(path)
    state["run"]["rng"] = state.pop("checkpoint")["rng"]
    save_checkpoint(path, state)
    results = [train_ppo(config, resume=tmp_path / name, display="none") for name in ("new", "old")]
    assert results[0].eval_return_mean == results[1].eval_return_mean
    one, two = (load_checkpoint(tmp_path / name / "checkpoints/last.safetensors")["policy"] for name in ("new", "old"))
    assert all(torch.equal(one[name], two[name]) for name in one)
