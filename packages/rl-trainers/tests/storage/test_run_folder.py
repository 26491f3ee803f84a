"""One process trains in a folder; what it finds there is checked, and what it leaves can be resumed."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from rl_trainers_test_envs import GuessEnv

from rl.core.cli import main
from rl.core.errors import ArgumentError, CheckpointError, RLError
from rl.trainers import Evaluator, PPOConfig, load_checkpoint, save_checkpoint, train_ppo

# another process locks the folder, and the last checkpoint is damaged in place
from rl.trainers._storage import RunFolder
from rl.trainers.algorithms.ppo import PPO

CONFIG = PPOConfig(
    env="test/guess", num_envs=4, total_frames=512, frames_per_batch=128, minibatch_size=64, epochs=1, num_cells=(8,),
    eval_every=128, eval_episodes=1, final_eval_episodes=1, log_every=128, loggers=("csv",),
)  # fmt: skip


def stopped(after=128, **settings):
    config = dataclasses.replace(CONFIG, **settings)
    train_ppo(config, out="run", display="none", should_stop=lambda frames: frames >= after)
    return config


def returns(monkeypatch, values):
    found = iter(values)
    monkeypatch.setattr(Evaluator, "run", lambda self, episodes, *, seed: torch.full((episodes,), float(next(found))))


def test_the_best_policy_is_of_the_frames_that_were_trained(monkeypatch, tmp_path):
    """Killed after an evaluation that follows the checkpoint, and resumed for fewer frames than that."""

    def crash(frames):
        if frames == 384:
            raise OSError("killed")
        return False

    returns(monkeypatch, [3, 5, 9])
    with pytest.raises(OSError, match="killed"):
        train_ppo(dataclasses.replace(CONFIG, checkpoint_every=256), out="run", display="none", should_stop=crash)
    best = tmp_path / "run" / "checkpoints" / "best.safetensors"
    assert load_checkpoint(best)["frames"] == 384
    returns(monkeypatch, [4])
    result = train_ppo(dataclasses.replace(CONFIG, total_frames=256), resume="run", display="none")
    assert result.train_frames == load_checkpoint(best)["frames"] == 256
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["best/frames"] == 256


def test_fewer_frames_than_are_saved_end_the_run_with_an_evaluation():
    stopped(after=256, eval_every=10_000)
    assert train_ppo(dataclasses.replace(CONFIG, total_frames=128, eval_every=10_000), resume="run",
                     display="none").train_frames == 256  # fmt: skip


def test_a_folder_is_trained_in_by_one_process(tmp_path):
    config = stopped()
    code = (
        "import sys; from rl.trainers._storage import RunFolder\n"
        "with RunFolder('run').locked(): print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"locked\n"
        before = (tmp_path / "run" / "metrics.csv").read_bytes()
        with pytest.raises(CheckpointError, match="another process is training in run; wait for it or stop it"):
            train_ppo(config, resume="run", display="none")
        assert (tmp_path / "run" / "metrics.csv").read_bytes() == before
        other.kill()
    assert train_ppo(config, resume="run", display="none").train_frames == 512  # a killed process holds no lock


def test_a_run_whose_folder_disappears_ends_with_an_error(tmp_path):
    def remove(frames):
        if frames == 256:
            shutil.rmtree(tmp_path / "run")
        return False

    with pytest.raises(CheckpointError, match=r"the run folder run has disappeared: .* Nothing more can be saved"):
        train_ppo(CONFIG, out="run", display="none", should_stop=remove)
    assert not (tmp_path / "run").exists()


def test_temporary_files_of_a_killed_process_are_removed_on_resume(tmp_path):
    config = stopped()
    left = [tmp_path / "run" / "checkpoints" / ".last-abc_12.safetensors", tmp_path / "run" / ".config-x1.yaml"]
    for path in left:
        path.write_text("half")
    mine = tmp_path / "run" / ".notes"
    mine.write_text("keep")
    train_ppo(config, resume="run", display="none")
    assert not any(path.exists() for path in left)
    assert mine.exists()


def test_settings_edited_in_the_folder_are_rejected_and_those_that_may_change_are_named(tmp_path, capsys):
    stopped()
    path = tmp_path / "run" / "config.yaml"
    text = path.read_text()
    path.write_text(text.replace("gamma: 0.99", "gamma: 0.5").replace("seed: 0", "seed: 4"))
    assert main(["train", "--resume", "run", "--display", "none"]) == 1
    assert "run was begun with gamma=0.99, not 0.5; seed=0, not 4" in capsys.readouterr().err
    path.write_text(text)
    assert main(["train", "--resume", "run", "--total-frames", "256", "--display", "plain"]) == 0
    assert "resumed with total_frames=256 (was 512)" in capsys.readouterr().out


def test_a_curve_can_be_drawn_again(tmp_path, monkeypatch, capsys):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", full)
        with pytest.raises(RLError, match=r"learning_curve\.png cannot be written: No space .*then: rl plot run"):
            train_ppo(CONFIG, out="run", display="none")
    assert main(["plot", "run"]) == 0
    assert capsys.readouterr().out == "run/learning_curve.png\n"
    assert (tmp_path / "run" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plot"]) == 2
    (tmp_path / "run" / "metrics.csv").write_text("frames,rollout/return_mean\n10,many\n")
    assert main(["plot", "run"]) == 1
    assert "metrics.csv is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("saved", [True, False], ids=["saved", "nothing-saved"])
def test_the_exit_status_of_a_second_ctrl_c_says_if_anything_was_saved(saved, monkeypatch, capsys):
    step, taken = GuessEnv.step, 0

    def interrupted(self, tensordict):
        nonlocal taken
        taken += 1
        if taken == 50:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, tensordict)

    monkeypatch.setattr(GuessEnv, "step", interrupted)
    every = "128" if saved else "100000"
    words = ["--env", "test/guess", "--num-envs", "4", "--frames-per-batch", "128", "--minibatch-size", "64",
             "--eval-every", "100000", "--checkpoint-every", every, "--loggers", "[csv]", "--out", "run"]  # fmt: skip
    assert main(["train", *words, "--display", "none"]) == (130 if saved else 1)
    told = capsys.readouterr().err
    assert ("nothing was saved" in told) == (not saved)


def test_parts_that_do_not_fit_are_named_on_resume(monkeypatch):
    config = stopped()
    path = RunFolder("run").last
    state = load_checkpoint(path)
    state["policy"] = {name: torch.zeros(3) for name in state["policy"]}
    save_checkpoint(path, state)
    with pytest.raises(CheckpointError, match="does not fit this run: its part 'policy' raised RuntimeError"):
        train_ppo(config, resume="run", display="none")


@pytest.mark.parametrize("text", ["frames,a\nx,1\n", "frames,a\n\xff\n"], ids=["word", "not-utf8"])
def test_damaged_metrics_are_named_on_resume(text, tmp_path):
    config = stopped()
    (tmp_path / "run" / "metrics.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"metrics\.csv is damaged"):
        train_ppo(config, resume="run", display="none")


def test_settings_that_yaml_cannot_hold_are_rejected(tmp_path):
    with pytest.raises(ArgumentError, match=r"PPOConfig holds .*; use numbers, strings"):
        RunFolder.create("run", PPO, PPOConfig(env_kwargs={"at": object()}))
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_no_file_can_have_is_rejected():
    with pytest.raises(RLError, match=r"the run folder 'a\\x00b' has a byte"):
        train_ppo(CONFIG, out="a\0b", display="none")
