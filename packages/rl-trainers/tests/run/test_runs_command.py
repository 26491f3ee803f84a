"""``rl runs``, ``rl compare`` and ``rl plot``, over folders of real runs."""

import json
import math
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml
from filelock import FileLock
from matplotlib import image

from rl.core.cli import main
from rl.trainers import A2CConfig, PPOConfig, interquartile_mean, train_a2c, train_ppo
from rl.trainers.loggers import read_metrics

SMALL = {"total_frames": 128, "num_envs": 2, "num_cells": (8,), "eval_every": 64, "log_every": 64, "eval_episodes": 1,
         "final_eval_episodes": 2, "max_episode_steps": 50, "loggers": ("csv",)}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    for seed in range(3):
        ppo = PPOConfig(seed=seed, frames_per_batch=64, minibatch_size=32, epochs=1, **SMALL)
        train_ppo(ppo, out=folder / "runs" / "ppo" / f"seed-{seed}", display="none")
        a2c = A2CConfig(seed=seed, frames_per_batch=32, **SMALL)
        train_a2c(a2c, out=folder / "runs" / "a2c" / f"seed-{seed}", display="none")
    train_ppo(
        PPOConfig(frames_per_batch=64, minibatch_size=32, **SMALL),
        out=folder / "runs" / "half",
        display="none",
        should_stop=lambda frames: True,
    )
    return folder


@pytest.fixture
def runs(trained, tmp_path):
    shutil.copytree(trained / "runs", tmp_path / "runs")
    return Path("runs")


def command(capsys, *words):
    status = main(list(words))
    out, err = capsys.readouterr()
    return status, out, err


def result(capsys, *words):
    status, out, err = command(capsys, *words)
    assert (status, err) == (0, "")
    return json.loads(out)


def test_the_list_has_what_the_folders_have(runs, capsys):
    found = {one["run"]: one for one in result(capsys, "runs", "--json")}
    assert set(found) == {"runs/half", *(f"runs/{name}/seed-{seed}" for name in ("ppo", "a2c") for seed in range(3))}
    one = found["runs/ppo/seed-1"]
    summary = json.loads((runs / "ppo/seed-1/summary.json").read_text())
    assert (one["status"], one["recipe"], one["env"], one["seed"]) == ("done", "ppo", "CartPole-v1", 1)
    assert (one["frames"], one["best"], one["last"]) == (128, summary["best/return_mean"], summary["last/return_mean"])
    settings = yaml.safe_load((runs / "ppo/seed-1/config.yaml").read_text())
    assert settings.pop("stop_at_return") == math.inf  # JSON has no infinity
    assert one["settings"] == {**settings, "stop_at_return": None}
    half = found["runs/half"]
    assert (half["status"], half["frames"], half["best"]) == ("stopped", 64, None)
    metrics = read_metrics(runs / "half" / "metrics.csv")
    assert half["rollout"] == pytest.approx(metrics["rollout/return_mean"][-1], nan_ok=True)


def test_the_table_has_a_line_for_each_run(runs, capsys):
    status, out, err = command(capsys, "runs")
    lines = out.splitlines()
    assert (status, err, len(lines)) == (0, "", 8)
    assert lines[0].split() == ["run", "status", "recipe", "env", "seed", "frames", "best", "time", "started", "last",
                                "rollout"]  # fmt: skip
    assert all(len(line) == len(line.rstrip()) for line in lines)


@pytest.mark.parametrize(("conditions", "count"), [
    (["recipe=a2c"], 3), (["recipe!=a2c"], 4), (["status=stopped"], 1), (["seed>0"], 4), (["seed<=0", "recipe=ppo"], 2),
    (["gamma=0.990"], 7), (["clip-epsilon=0.2"], 4), (["best>-1"], 6), (["env=Pendulum-v1"], 0),
])  # fmt: skip
def test_conditions_choose_runs(conditions, count, runs, capsys):
    words = [word for condition in conditions for word in ("--where", condition)]
    assert len(result(capsys, "runs", "list", *words, "--json")) == count


def test_runs_are_sorted_by_any_column_or_setting(runs, capsys):
    best = [one["best"] for one in result(capsys, "runs", "--sort", "best", "--reverse", "--json")]
    assert best[-1] is None
    assert best[:-1] == sorted(best[:-1], reverse=True)
    seeds = [one["seed"] for one in result(capsys, "runs", "--sort", "seed", "--json")]
    assert seeds == sorted(seeds)


def test_a_run_whose_folder_is_locked_is_running(runs, capsys):
    with FileLock(runs / "half" / ".lock"):
        assert result(capsys, "runs", "--where", "status=running", "--json")[0]["run"] == "runs/half"
        status, _, err = command(capsys, "runs", "rm", "runs/half", "--yes")
    assert status == 1
    assert "a process trains in runs/half" in err
    assert (runs / "half").is_dir()


def test_a_damaged_run_is_named_and_the_others_are_listed(runs, capsys):
    (runs / "ppo" / "seed-0" / "config.yaml").write_text("- no mapping")
    status, out, err = command(capsys, "runs", "--json")
    assert (status, len(json.loads(out))) == (0, 6)
    assert "seed-0/config.yaml is damaged" in err


def test_show_has_settings_other_than_the_defaults_and_each_start(runs, capsys):
    status, out, _ = command(capsys, "runs", "show", "runs/ppo/seed-2")
    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["seed", "2"] in lines
    assert ["total_frames", "128"] in lines
    assert not any(line[:1] == ["gamma"] for line in lines)
    assert any(line[:2] == ["versions", "python"] for line in lines)
    whole = result(capsys, "runs", "show", "runs/ppo/seed-2", "--json")
    assert whole["history"][0]["machine"]["processors"] >= 1
    assert whole["history"][0]["versions"]["torch"]
    assert whole["summary"]["seed"] == 2
    assert len(result(capsys, "runs", "show", "runs/ppo", "--json")) == 3


def test_diff_has_the_settings_that_differ(runs, capsys):
    found = result(capsys, "runs", "diff", "runs/ppo/seed-0", "runs/ppo/seed-2", "--json")
    assert found == {"settings": {"seed": [0, 2]}, "versions": {}}
    status, out, _ = command(capsys, "runs", "diff", "runs/half", "runs/half")
    assert (status, out) == (0, "the runs have the same settings and versions\n")


def test_best_has_the_best_run_of_each_environment(runs, capsys):
    every = result(capsys, "runs", "--json")
    (best,) = result(capsys, "runs", "best", "--json")
    assert best["best"] == max(one["best"] for one in every if one["best"] is not None)
    status, _, err = command(capsys, "runs", "best", "--where", "status=stopped")
    assert status == 1
    assert "no run in runs has best/return_mean yet" in err


def test_runs_are_deleted_after_a_question_or_with_yes(runs, capsys, monkeypatch):
    status, _, err = command(capsys, "runs", "rm", "runs/ppo")
    assert status == 1
    assert re.fullmatch(r"rl: 3 runs \(.* MB\) would be deleted: there is no terminal to ask on, so add --yes\n", err)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert command(capsys, "runs", "rm", "runs/ppo")[:2] == (0, "nothing was deleted\n")
    assert (runs / "ppo").is_dir()
    monkeypatch.setattr("builtins.input", lambda question: "y")
    assert command(capsys, "runs", "rm", "runs/ppo")[0] == 0
    assert command(capsys, "runs", "rm", "runs/half", "runs/a2c/seed-1", "--yes")[0] == 0
    assert sorted(path.name for path in runs.rglob("seed-*")) == ["seed-0", "seed-2"]
    status, _, err = command(capsys, "runs", "rm", "runs", "--yes")
    assert status == 1
    assert "runs is not a run folder" in err


def test_runs_that_fulfil_conditions_are_deleted(runs, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "y")
    status, out, _ = command(capsys, "runs", "rm", "runs", "--where", "recipe=a2c", "--where", "seed>0")
    assert (status, out.startswith("deleted 2 runs (")) == (0, True)
    assert asked[0].endswith("MB): runs/a2c/seed-1, runs/a2c/seed-2? [y/N] ")
    assert [path.name for path in (runs / "a2c").iterdir()] == ["seed-0"]
    assert command(capsys, "runs", "rm", "runs", "--where", "seed=9")[:2] == (0, "there is no run like that in runs\n")
    status, _, err = command(capsys, "runs", "rm", "runs", "--where", "sed=0")
    assert (status, "did you mean seed?" in err) == (1, True)
    assert len([*runs.rglob("config.yaml")]) == 5


def test_a_folder_of_seeds_is_deleted_with_its_last_run_but_for_files_of_others(runs, capsys):
    for name in ("ppo", "a2c"):
        (runs / name / "learning_curve.png").touch()
    (runs / "a2c" / "notes.txt").touch()
    assert command(capsys, "runs", "rm", "runs/ppo/seed-0", "runs/ppo", "runs/a2c", "--yes")[0] == 0
    assert sorted(path.name for path in runs.iterdir()) == ["a2c", "half"]
    assert sorted(path.name for path in (runs / "a2c").iterdir()) == ["learning_curve.png", "notes.txt"]


def test_a_run_is_deleted_once_and_by_a_pattern_or_from_inside(runs, capsys, monkeypatch):
    assert command(capsys, "runs", "rm", "runs/half", "./runs/half", "--yes")[1].startswith("deleted 1 run (")
    assert command(capsys, "runs", "rm", "runs/*/seed-1", "--yes")[1].startswith("deleted 2 runs (")
    with monkeypatch.context() as inside:
        inside.chdir("runs/ppo/seed-0")
        assert command(capsys, "runs", "rm", ".", "--yes")[0] == 0
    assert not (runs / "ppo" / "seed-0").exists()
    assert command(capsys, "runs", "rm", "nothing-*", "--yes")[2] == (
        "rl: no folder fits nothing-*; `rl runs` lists those in runs/\n"
    )


def test_runs_behind_links_are_not_deleted(runs, capsys):
    Path("ppo-link").symlink_to(runs / "ppo")
    Path("half-link").symlink_to(runs / "half")
    for name, target in (("ppo-link/", "runs/ppo"), ("half-link", "runs/half")):
        status, _, err = command(capsys, "runs", "rm", name, "--yes")
        assert status == 1
        assert err.endswith(
            f"is a link, which is not followed: name the folder that it leads to, {Path.cwd() / target}\n"
        )
    assert len([*runs.rglob("config.yaml")]) == 7


def test_the_end_of_input_deletes_nothing(runs, capsys, monkeypatch):
    def ended(question):
        raise EOFError

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", ended)
    assert command(capsys, "runs", "rm", "runs/half")[:2] == (0, "\nnothing was deleted\n")
    assert (runs / "half").is_dir()


def test_a_run_that_cannot_be_deleted_is_named(runs, capsys, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("shutil.rmtree", refuse)  # files of another user, which a test cannot make
    status, _, err = command(capsys, "runs", "rm", "runs/half", "--yes")
    assert status == 1
    assert err.startswith("rl: runs/half cannot be deleted: [Errno 13] Permission denied")


def test_compare_has_the_interquartile_means_and_their_order(runs, capsys):
    found = result(capsys, "compare", "runs/ppo", "runs/a2c/*", "--json")
    scores = {
        name: [json.loads((runs / name / f"seed-{s}/summary.json").read_text())["best/return_mean"] for s in range(3)]
        for name in ("ppo", "a2c")
    }
    assert found["first"]["scores"] == scores["ppo"]
    assert found["second"]["iqm"] == pytest.approx(interquartile_mean(scores["a2c"]))
    pairs = [(a > b) + 0.5 * (a == b) for a in scores["ppo"] for b in scores["a2c"]]
    assert found["probability"] == pytest.approx(sum(pairs) / 9)
    assert found["settings"]["frames_per_batch"] == [64, 32]
    status, out, _ = command(capsys, "compare", "runs/ppo", "runs/a2c")
    assert status == 0
    assert "probability that a run of A is above one of B" in out


def test_plots_of_several_runs_have_a_curve_for_each_algorithm(runs, capsys):
    found = result(capsys, "plot", "runs/ppo", "runs/a2c", "--json")
    assert [(one["label"], len(one["runs"])) for one in found] == [("ppo", 3), ("a2c", 3)]
    seeds = [read_metrics(runs / f"ppo/seed-{seed}/metrics.csv") for seed in range(3)]
    assert found[0]["frames"] == seeds[0]["frames"]
    last = [one["eval/return_mean"][-1] for one in seeds]
    assert found[0]["iqm"][-1] == pytest.approx(interquartile_mean(last))
    assert found[0]["low"][-1] <= found[0]["iqm"][-1] <= found[0]["high"][-1]
    half = result(capsys, "plot", "runs/ppo", "runs/half", "--json")
    assert [one["label"] for one in half] == ["ppo epochs=1", "ppo epochs=10"]


def test_curves_over_time_are_interpolated_where_all_runs_have_points(runs, capsys):
    for seed in range(3):  # the return is seconds + seed
        rows = [f"{10 * t},{t + seed},{t}" for t in range(seed, 10 + seed)]
        text = "\n".join(["frames,eval/return_mean,time/seconds", *rows]) + "\n"
        (runs / f"ppo/seed-{seed}/metrics.csv").write_text(text)
    (found,) = result(capsys, "plot", "runs/ppo", "--x", "time", "--json")
    assert (found["time"][0], found["time"][-1], len(found["time"])) == (2, 9, 101)
    assert found["iqm"] == pytest.approx([t + 1 for t in found["time"]])


def test_a_run_that_is_not_complete_cuts_the_curve_off_and_is_named(runs, capsys):
    whole = runs / "ppo/seed-1"
    frames = read_metrics(whole / "metrics.csv")["frames"]
    (whole / "summary.json").unlink()
    lines = (whole / "metrics.csv").read_text().splitlines(keepends=True)
    (whole / "metrics.csv").write_text("".join(lines[:2]))
    status, out, err = command(capsys, "plot", "runs/ppo", "--json")
    assert (status, err) == (0, "note: runs/ppo/seed-1 is not complete, and the curve of its 3 runs ends with it\n")
    (found,) = json.loads(out)
    assert found["frames"] == frames[:1]  # the only point that all of them have, once
    assert command(capsys, "plot", "runs/ppo")[2] == err
    assert command(capsys, "plot", "runs/ppo/seed-1")[2] == ""


def test_plots_are_pictures_and_pages(runs, capsys):
    for name in ("a.png", "b.svg", "c.html"):
        assert command(capsys, "plot", "runs/ppo", "runs/a2c", "--out", name)[:2] == (0, f"{name}\n")
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    assert ET.parse("b.svg").getroot().tag.endswith("svg")
    assert "<td>ppo</td><td>3</td><td>128</td>" in Path("c.html").read_text()
    assert command(capsys, "plot", "runs/ppo/seed-0")[1] == "runs/ppo/seed-0/learning_curve.png\n"


def test_long_labels_stand_below_the_curves_and_are_not_cut_off(runs, capsys):
    changed = {"total_frames": 123_456_789, "learning_rate": 0.123456789, "entropy_coeff": 0.123456789,
               "num_cells": [1024, 1024, 1024], "clip_epsilon": 0.123456789, "gamma": 0.123456789}  # fmt: skip
    path = runs / "half" / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changed))
    assert command(capsys, "plot", "runs/ppo", "runs/half", "--out", "long.png")[0] == 0
    picture = image.imread("long.png")[..., :3]
    assert all((edge == 1).all() for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]))
    assert command(capsys, "plot", "runs/ppo", "runs/half", "--out", "long.svg")[0] == 0
    texts = [one.text for one in ET.parse("long.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert any("total_frames=123456789" in text for text in texts)
    assert max(map(len, texts)) <= 84


@pytest.mark.parametrize(("words", "status", "said"), [
    (["runs", "--where", "gamma"], 1, "'gamma' is no condition: write NAME=VALUE"),
    (["runs", "--where", "gama=1"], 1, "no run has 'gama': did you mean gamma?"),
    (["runs", "--where", "best>high"], 1, "needs a number after >, got 'high'"),
    (["runs", "--sort", "bst"], 1, "no run has 'bst': did you mean best?"),
    (["runs", "elsewhere"], 1, "there is no folder elsewhere"),
    (["runs", "--nothing"], 2, "unrecognized arguments: --nothing"),
    (["runs", "show", "elsewhere"], 1, "elsewhere is not a run folder"),
    (["compare", "runs/ppo"], 2, "required: B"),
    (["compare", "runs/ppo", "runs/half"], 1, "no run of runs/half is complete"),
    (["compare", "runs/ppo", "runs/a2c", "--metric", "env"], 1, "--metric env is not a number"),
    (["plot"], 2, "required: RUN"),
    (["plot", "runs/ppo", "--out", "a.jpg"], 1, "--out writes .png, .svg, .html, got 'a.jpg'"),
    (["plot", "runs/ppo", "--metric", "eval"], 1, "has no column 'eval'; it has rollout/return_mean"),
    (["plot", "runs/x-*"], 1, "no folder fits runs/x-*"),
    (["train", "--like", "runs/ppo"], 1, "runs/ppo is not a run folder"),
    (["train", "--like", "runs/half", "--resume", "runs/half"], 2, "--like and --resume exclude each other"),
])  # fmt: skip
def test_wrong_input_is_explained(words, status, said, runs, capsys):
    found, _, err = command(capsys, *words)
    assert (found, said in err) == (status, True), err


def test_train_like_repeats_a_run(runs, capsys):
    assert main(["train", "--like", "runs/ppo/seed-1", "--display", "none", "--out", "again"]) == 0
    first, again = (read_metrics(Path(name) / "metrics.csv") for name in ("runs/ppo/seed-1", "again"))
    for name in ("frames", "eval/return_mean", "train/loss_actor"):
        assert first[name] == again[name]
    changed = ["train", "--like", "runs/ppo/seed-1", "--seed", "9", "--out", "other", "--display", "plain"]
    history = json.loads((runs / "ppo/seed-1/history.json").read_text())
    history[-1]["versions"]["torch"] = "1.0"
    (runs / "ppo/seed-1/history.json").write_text(json.dumps(history))
    assert main(changed) == 0
    assert "; runs/ppo/seed-1 had 1.0" in capsys.readouterr().out
    found = result(capsys, "runs", "diff", "again", "other", "--json")
    assert found["settings"] == {"seed": [1, 9]}


def test_changes_of_the_code_are_kept_with_the_run(tmp_path, capsys):
    def git(*words):
        done = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        subprocess.run(done, check=True, capture_output=True)

    git("init")
    Path("code.py").write_text("a = 1\n")
    git("add", "code.py")
    git("commit", "-m", "first")
    config = PPOConfig(frames_per_batch=64, minibatch_size=32, epochs=1, **SMALL)
    train_ppo(config, out="clean", display="none")
    assert not [*Path("clean").glob("*.diff")]
    Path("code.py").write_text("a = 2\n")
    train_ppo(config, out="changed", display="none")
    history = json.loads(Path("changed/history.json").read_text())
    assert history[0]["git_commit"].endswith("-dirty")
    git("checkout", "code.py")
    git("apply", f"changed/{history[0]['git_diff']}")
    assert Path("code.py").read_text() == "a = 2\n"
