"""episodes.csv, history.json, and metrics with the names of rl-trainers 0.3."""

import csv
import json
import math
import subprocess
import sys

import pytest

from rl.trainers import PPOConfig, train_ppo

# the record of this process, without a training for each command line and commit
from rl.trainers._storage import this_process
from rl.trainers.loggers import CSVLogger, read_metrics

CONFIG = PPOConfig(
    env="CartPole-v1", total_frames=512, num_envs=2, frames_per_batch=128, minibatch_size=64, epochs=1, num_cells=(8,),
    eval_episodes=1, final_eval_episodes=1, loggers=("csv",), log_every=128, anneal_lr=False,
)  # fmt: skip


def episodes(folder):
    with (folder / "episodes.csv").open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def without_clock(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_episodes_csv_has_every_episode_of_training(tmp_path):
    """CartPole-v1 pays 1 for a step, so returns are lengths, and lengths add up to the frames of whole episodes."""
    train_ppo(CONFIG, out="run", display="none")
    rows = episodes(tmp_path / "run")
    columns = read_metrics(tmp_path / "run" / "metrics.csv")
    assert len(rows) == columns["rollout/episodes"][-1] > 10
    assert all(row["return"] == row["length"] > 7 and row["frames"] % 2 == 0 for row in rows)
    assert [row["frames"] for row in rows] == sorted(row["frames"] for row in rows)
    last = [row["return"] for row in rows][-100:]
    assert columns["rollout/return_mean"][-1] == pytest.approx(sum(last) / len(last))
    assert 512 - 2 * 100 < sum(row["length"] for row in rows) <= 512
    first = rows[0]
    assert first["frames"] == 2 * first["length"]  # both environments have stepped


def test_a_resumed_run_has_the_same_episodes_and_both_starts(tmp_path):
    train_ppo(CONFIG, out="whole", display="none")
    train_ppo(CONFIG, out="parts", display="none", should_stop=lambda frames: frames >= 256)
    with (tmp_path / "parts" / "episodes.csv").open("a") as file:
        file.write("300,1,1,1\n")  # of a process that was killed after its last checkpoint
    train_ppo(CONFIG, resume="parts", display="none")
    assert without_clock(episodes(tmp_path / "parts")) == without_clock(episodes(tmp_path / "whole"))
    history = json.loads((tmp_path / "parts" / "history.json").read_text())
    assert [start["frames"] for start in history] == [0, 256]
    assert all("command" in start and "started" in start for start in history)


def test_the_git_commit_is_that_of_the_working_folder(tmp_path):
    assert "git_commit" not in this_process()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    (tmp_path / "file").write_text("1")
    for command in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert this_process()["git_commit"] == head
    (tmp_path / "file").write_text("2")
    assert this_process()["git_commit"] == f"{head}-dirty"


def test_the_command_line_can_be_typed_again(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/rl", "train", "ppo", "--num-cells", "[8, 8]"])
    assert this_process()["command"] == "rl train ppo --num-cells '[8, 8]'"


def test_metrics_of_0_3_get_the_present_names(tmp_path):
    old = "frames,return_mean,length_mean,episodes,eval_return_mean,loss_policy,loss_value,kl,seconds,frames_per_second"
    (tmp_path / "metrics.csv").write_text(f"{old},time_collect\n10,1,2,3,,4,5,6,7,8,9\n20,1,2,3,,4,5,6,7,8,9\n")
    names = ["frames", "rollout/return_mean", "rollout/length_mean", "rollout/episodes", "eval/return_mean"]
    names += ["train/loss_actor", "train/loss_critic", "train/kl", "time/seconds", "time/fps", "time/collect"]
    columns = read_metrics(tmp_path / "metrics.csv")
    assert list(columns) == names
    assert [columns[name][0] for name in ("train/loss_critic", "train/kl", "time/collect")] == [5, 6, 9]
    assert math.isnan(columns["eval/return_mean"][0])
    logger = CSVLogger(tmp_path, resume_step=10)
    logger.log_scalars({"train/kl": 0.5}, 30)
    logger.close()
    assert (tmp_path / "metrics.csv").read_text().splitlines()[0] == ",".join(names)
    assert read_metrics(tmp_path / "metrics.csv")["frames"] == [10, 30]
