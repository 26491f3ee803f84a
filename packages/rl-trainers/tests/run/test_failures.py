"""What is said, and what is left behind, when something fails in the middle of a run."""

import errno
import threading
from pathlib import Path

import pytest
import torch
from rl_trainers_test_envs import FakeEnv, GuessEnv

from rl.core.cli import main
from rl.core.errors import CheckpointError, RLError, SpecError, UnknownComponentError
from rl.core.specs import Binary, Bounded, Categorical, MultiCategorical, NonTensor, Unbounded
from rl.trainers import DQNConfig, PPOConfig, load_checkpoint, load_run, make_env, save_checkpoint, train_dqn, train_ppo

# eight folders are created at the same moment, without eight trainings
from rl.trainers._storage import RunFolder
from rl.trainers.algorithms.dqn import dqn_policy
from rl.trainers.algorithms.ppo import PPO
from rl.trainers.algorithms.ppo import policy as ppo_policy
from rl.trainers.cli import train

SMALL = {"env": "test/guess", "num_envs": 4, "eval_episodes": 1, "final_eval_episodes": 1, "loggers": ("csv",)}


def tiny(**settings):
    return PPOConfig(
        **{**SMALL, "frames_per_batch": 128, "minibatch_size": 64, "epochs": 1, "num_cells": (8,), **settings}
    )


def after_frames(frames, change):
    """A step that calls `change` on its result after a number of frames."""
    step, taken = GuessEnv.step, 0

    def changed(self, tensordict):
        nonlocal taken
        taken += self.batch_size.numel()
        out = step(self, tensordict)
        if taken > frames:
            change(out)
        return out

    return changed


def nan_reward(td):
    td["next", "reward"].fill_(float("nan"))


def test_weights_that_are_not_numbers_never_replace_a_checkpoint(monkeypatch, tmp_path):
    monkeypatch.setattr(GuessEnv, "step", after_frames(300, nan_reward))
    config = tiny(total_frames=1280, checkpoint_every=128, log_every=1024, eval_every=4096)
    with pytest.raises(RLError, match="became nan after 304 frames") as caught:
        train_ppo(config, out=tmp_path / "run", display="none")
    last = load_checkpoint(tmp_path / "run" / "checkpoints" / "last.safetensors")
    assert last["run"]["frames"] == 256
    assert all(torch.isfinite(weight).all() for weight in last["policy"].values())
    assert "resume" not in str(caught.value)  # a resumed run keeps its learning rate
    assert "a new run" in str(caught.value)


def test_returns_that_are_not_numbers_end_the_run(monkeypatch, tmp_path):
    """Even where no loss says so: dqn has not begun to learn, and the rewards break after training."""
    monkeypatch.setattr(GuessEnv, "step", after_frames(128, nan_reward))
    config = DQNConfig(**SMALL, total_frames=128, learning_starts=10_000)
    with pytest.raises(RLError, match=r"the mean return of an evaluation is nan .*rewards of 'test/guess'"):
        train_dqn(config, out=tmp_path / "run", display="none")


def test_an_error_in_the_environment_says_what_is_left(monkeypatch, tmp_path, capsys):
    def explode(td):
        raise OSError("the simulator went away")

    step = GuessEnv.step
    monkeypatch.setattr(GuessEnv, "step", after_frames(300, explode))
    with pytest.raises(OSError, match="went away"):
        train_ppo(tiny(total_frames=1280, checkpoint_every=128), out="run", display="plain")
    assert "256 frames are saved; to continue: rl train ppo --resume run" in capsys.readouterr().out
    monkeypatch.setattr(GuessEnv, "step", step)
    monkeypatch.setattr(GuessEnv, "step", after_frames(300, explode))
    with pytest.raises(OSError, match="went away"):
        train_ppo(tiny(total_frames=1280), out="early", display="plain")
    assert "no checkpoint was saved yet in early" in capsys.readouterr().out
    assert (tmp_path / "early" / "config.yaml").is_file()


@pytest.mark.parametrize("seeds", [[], ["--seeds", "0,1"]])
@pytest.mark.parametrize("out", [[], ["--out", "a/b"]])
def test_a_start_that_fails_leaves_no_folder(seeds, out, monkeypatch, tmp_path, capsys):
    def explode(td):
        raise RLError("the simulator went away")

    monkeypatch.setattr(GuessEnv, "step", after_frames(8, explode))
    assert main(["train", "ppo", "--env", "test/guess", "--num-envs", "4", "--display", "plain", *seeds, *out]) == 1
    told = capsys.readouterr()
    assert "went away" in told.err
    assert "no checkpoint" not in told.out
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not (tmp_path / "a" / "b").exists()


@pytest.mark.parametrize(
    ("out", "text"),
    [
        ("", "empty name"),
        (" ", "empty name"),
        ("bad\udcff", r"'bad\\udcff' has a byte"),
        ("a\0b", "has a byte that is no text"),
    ],
)
def test_names_of_folders_that_cannot_be_are_rejected_before_the_run(out, text, tmp_path):
    for seeds in ([], ["--seeds", "0,1"]):
        with pytest.raises(RLError, match=text):
            train(["ppo", "--env", "test/guess", "--display", "none", "--out", out, *seeds])
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named(monkeypatch, tmp_path):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "a.safetensors"
    save_checkpoint(path, {"a": 1})
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(CheckpointError, match=r"a\.safetensors cannot be written: .*No space left.*free"):
        save_checkpoint(path, {"a": 2})
    assert load_checkpoint(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


def test_metrics_on_a_full_disk_are_an_error_in_one_line(monkeypatch, capsys):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rl.trainers.loggers.CSVLogger.log_scalars", full)
    assert main(["train", "--env", "test/guess", "--total-frames", "1024", "--display", "none"]) == 1
    told = capsys.readouterr().err
    assert "the run cannot be written: [Errno 28] No space left on device; free" in told
    assert told.count("\n") == 1


def test_runs_that_begin_together_get_folders_of_their_own():
    config, folders, errors = tiny(), [], []
    barrier = threading.Barrier(8)

    def begin():
        barrier.wait()
        try:
            folders.append(RunFolder.create(None, PPO, config).path.name)
        except RLError as error:
            errors.append(error)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(folders) == [f"ppo-test-guess-0-{i}" for i in range(1, 9)]


@pytest.mark.parametrize(
    ("build", "config", "spec", "named"),
    [
        pytest.param(dqn_policy, DQNConfig(), Bounded(-2.0, 2.0, (1,)), "a Bounded float32 [1]", id="dqn-box"),
        pytest.param(dqn_policy, DQNConfig(), Bounded(-2.0, 2.0, (2,)), "a Bounded float32 [2]", id="dqn-two"),
        pytest.param(dqn_policy, DQNConfig(), MultiCategorical([2, 3]), "a MultiCategorical int64 [2]", id="dqn-multi"),
        pytest.param(ppo_policy, PPOConfig(), Binary(3, (2, 3)), "a Binary int8 [2, 3]", id="ppo-binary-matrix"),
        pytest.param(ppo_policy, PPOConfig(), Bounded(0, 3, (2,), dtype=torch.int64), "Bounded int64", id="ppo-int"),
        pytest.param(ppo_policy, PPOConfig(), Unbounded((2, 2)), "an Unbounded float32 [2, 2]", id="ppo-matrix"),
    ],
)
def test_rejected_actions_are_named_in_one_line(build, config, spec, named):
    with pytest.raises(SpecError, match="trains") as caught:
        build(config, FakeEnv(spec))
    message = str(caught.value)
    assert "\n" not in message
    assert named in message
    # another recipe is named only where it fits
    assert ("train it with ppo" in message) == (build is dqn_policy)


def test_actions_with_a_bound_on_one_side_are_rejected():
    spec = Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, float("inf")]))
    with pytest.raises(SpecError, match=r"'action' of FakeEnv is in \[\[-1.0, 0.0\], \[1.0, inf\]\]: set bounds"):
        ppo_policy(PPOConfig(), FakeEnv(spec))


def test_observations_that_are_no_numbers_are_rejected():
    env = FakeEnv(Categorical(2), {"words": NonTensor((3,)), "sizes": Unbounded((2,))})
    with pytest.raises(SpecError, match=r"'words'.*no tensor"):
        ppo_policy(PPOConfig(), env)


def test_an_id_for_a_component_that_takes_none_is_rejected():
    with pytest.raises(UnknownComponentError, match="'pendulum' takes no id"):
        make_env("pendulum/foo", 1, seed=0)


def test_a_policy_of_a_device_that_is_not_there_is_loaded_onto_another(tmp_path):
    train_ppo(tiny(total_frames=128), out="run", display="none")
    text = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "run" / "config.yaml").write_text(text.replace("device: cpu", "device: cuda:99"))
    with pytest.raises(RLError, match=r"'cuda:99' cannot be used here"):
        load_run("run")
    assert load_run("run", device="cpu").config.device == "cpu"
