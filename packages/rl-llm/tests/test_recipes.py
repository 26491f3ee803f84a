"""``rl train`` of language models; skipped without rl-trainers."""

import pytest

pytest.importorskip("rl.trainers", reason="recipes need rl-trainers")

from rl.core.errors import ArgumentError
from rl.core.registry import load
from rl.llm import load_model
from rl.llm.recipes import GRPO, GRPOConfig, SFTConfig
from rl.trainers.cli import train

FEW = ["--task-options", "{length: 2, digits: 2}", "--eval-problems", "4", "--threads", "1", "--display", "none"]


def test_the_command_trains_resumes_and_exports(tmp_path):
    run = str(tmp_path / "run")
    assert train(["grpo", "--updates", "2", "--groups", "2", "--group-size", "2", "--out", run, *FEW]) == 0
    assert train(["--resume", run, "--updates", "3", "--display", "none"]) == 0
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 4
    assert train(["sft", "--model", f"{run}/model", "--updates", "1", "--out", str(tmp_path / "sft"), *FEW]) == 0
    load_model(str(tmp_path / "sft" / "model"))


def test_a_run_of_another_name_goes_to_a_folder_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = [
        "expert-iteration",
        "--task",
        "copy",
        "--updates",
        "1",
        "--groups",
        "2",
        "--group-size",
        "2",
        *FEW[2:-2],
    ]
    assert train([*arguments, "--task-options", "{length: 2}"]) == 0
    assert "run folder: runs/expert-iteration-copy-0-1" in capsys.readouterr().out


def test_a_stopped_run_says_so(tmp_path):
    config = GRPOConfig(updates=3, groups=2, group_size=2, eval_problems=2)
    result = GRPO.train(config, out=tmp_path / "run", display="none", should_stop=lambda update: update == 1)
    assert (result.interrupted, result.train_frames) == (True, 1)


def test_settings_of_environments_and_bad_values_are_refused(capsys):
    assert train(["grpo", "--num-envs", "2"]) == 2
    assert train(["grpo", "--loss", "PPO"]) == 2
    assert "GRPO: loss must be" in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="num_envs must be left out"):
        SFTConfig(num_envs=2)
    assert load("recipe", "grpo") is GRPO
    with pytest.raises(ValueError, match="no policy"):
        GRPO.make_policy(GRPOConfig(), None)


def test_the_help_explains_each_option(capsys):
    assert train(["grpo", "--help"]) == 0
    page = capsys.readouterr().out
    assert "Number of answers to each problem" in page
    assert "--num-envs" not in page
