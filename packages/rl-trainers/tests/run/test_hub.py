"""``rl hub``: what is shared is a run folder without code; a folder and a stand-in for the Hub's library take it."""

import json
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml
from safetensors.torch import load_file  # another reader of the format

from rl.core.cli import main
from rl.core.state import load
from rl.trainers import PPOConfig, evaluate, load_checkpoint, load_policy, load_run, save_checkpoint, train_ppo

SMALL = {"total_frames": 128, "num_envs": 2, "frames_per_batch": 128, "minibatch_size": 64, "epochs": 1,
         "num_cells": (4,), "normalize_observation": True,
         "eval_episodes": 1, "final_eval_episodes": 2, "loggers": ("csv",)}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub") / "run"
    return train_ppo(PPOConfig(env="pendulum", max_episode_steps=20, **SMALL), out=folder, display="none").folder


@pytest.fixture
def run(trained):
    shutil.copytree(trained, "run")
    return Path("run")


@pytest.fixture
def command(capsys):
    def call(*words):
        status = main(["hub", *words])
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture
def shared(run, command):
    assert command("push", "run", "./hub/swing")[0] == 0
    return Path("hub/swing")


def front_of(path):
    _, head, text = path.read_text().split("---\n", 2)
    return yaml.safe_load(head), text


def test_a_run_that_was_shared_plays_as_before(run, shared, command, capsys):
    shutil.rmtree(shared / ".." / ".." / "run")
    status, out, _ = command("pull", "./hub/swing")
    assert status == 0
    assert out.startswith("runs/swing: ppo on pendulum, mean return -")
    assert out.endswith("watch it with: rl play runs/swing\n")
    pulled = evaluate("runs/swing", episodes=3, seed=5)
    assert main(["eval", "runs/swing", "--episodes", "3", "--seed", "5"]) == 0
    assert f"return {float(pulled.mean()):.2f} ±" in capsys.readouterr().out


def test_nothing_of_a_policy_is_lost(trained, shared, command):
    command("pull", "./hub/swing", "--out", "mine")
    assert evaluate("mine", episodes=3, seed=5).tolist() == evaluate(trained, episodes=3, seed=5).tolist()
    observation = np.array([0.5, 0.1, 2.0], np.float32)
    assert load_policy("mine").predict(observation) == load_policy(trained).predict(observation)
    assert load_run("mine").frames == load_run(trained).frames


def test_what_is_shared_has_no_code_and_no_traces_of_the_machine(run, shared):
    names = {str(path.relative_to(shared)) for path in shared.rglob("*") if path.is_file()}
    assert names == {"README.md", "config.yaml", "checkpoints/best.safetensors", "summary.json", "metrics.csv",
                     "learning_curve.png"}  # fmt: skip
    assert load_file(shared / "checkpoints" / "best.safetensors")
    assert sorted(load(shared / "checkpoints" / "best.safetensors")) == [
        "eval_return_mean", "frames", "policy", "statistics"
    ]  # fmt: skip
    host = json.loads((run / "history.json").read_text())[0]["machine"]["host"]
    assert not any(host in path.read_text() for path in shared.glob("*.[mjy]*") if host)


def test_the_card_is_what_leaderboards_read(run, shared):
    head, text = front_of(shared / "README.md")
    summary = json.loads((run / "summary.json").read_text())
    assert head["library_name"] == "rl-trainers"
    assert {"pendulum", "ppo", "reinforcement-learning", "deep-reinforcement-learning"} <= set(head["tags"])
    (model,) = head["model-index"]
    (result,) = model["results"]
    assert result["task"]["type"] == "reinforcement-learning"
    assert result["dataset"] == {"name": "pendulum", "type": "pendulum"}
    (metric,) = result["metrics"]
    value = f"{summary['best/return_mean']:.2f} +/- {summary['best/return_std']:.2f}"
    assert (metric["type"], metric["value"], metric["verified"]) == ("mean_reward", value, False)
    assert "rl hub pull ./hub/swing --out swing" in text
    assert 'load_policy("swing")' in text
    assert "![Learning curve](learning_curve.png)" in text


def test_a_run_that_is_not_complete_is_shared_without_a_result(run, command):
    (run / "summary.json").unlink()
    (run / "checkpoints" / "best.safetensors").unlink()  # stopped before the first evaluation
    assert command("push", "run", "./hub")[0] == 0
    assert front_of(Path("hub/README.md"))[0]["model-index"][0]["results"] == []
    assert command("pull", "./hub", "--out", "mine")[0] == 0
    assert load_run("mine").frames == 128
    assert load_run("mine").statistics


def test_the_newest_video_is_shared_and_replaced(run, shared, command):
    (run / "videos").mkdir()
    (run / "videos" / "old.mp4").write_bytes(b"old")
    (run / "videos" / "new.mp4").write_bytes(b"new")
    os.utime(run / "videos" / "old.mp4", (1, 1))
    assert command("push", "run", "./hub/swing")[0] == 0
    assert (shared / "replay.mp4").read_bytes() == b"new"
    command("pull", "./hub/swing", "--out", "mine")
    assert command("push", "mine", "./again")[0] == 0  # a pulled run can be shared again
    assert Path("again/replay.mp4").read_bytes() == b"new"
    shutil.rmtree(run / "videos")
    assert command("push", "run", "./hub/swing")[0] == 0
    assert not (shared / "replay.mp4").exists()


def test_the_card_of_a_run_is_printed(run, command):
    status, out, _ = command("card", "run")
    assert status == 0
    assert out.startswith("---\nlibrary_name: rl-trainers\n")
    assert "rl hub pull OWNER/run --out run" in out
    assert not (run / "README.md").exists()


# ---- what is wrong


def test_code_that_a_shared_run_names_is_not_imported(shared, command, tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('imported').write_text('yes')\n")
    monkeypatch.syspath_prepend(tmp_path)
    values = yaml.safe_load((shared / "config.yaml").read_text())
    (shared / "config.yaml").write_text(yaml.safe_dump({**values, "env": "evil:Maze"}))
    (shared / "evil.py").write_text("")
    status, out, _ = command("pull", "./hub/swing", "--out", "mine")
    assert status == 0
    assert "its settings name code of evil, which runs only if you add --trust evil\n" in out
    assert "watch it with: rl play mine --trust evil\n" in out
    assert not Path("mine/evil.py").exists()
    assert main(["play", "mine", "--video", "x.mp4"]) == 1
    assert command("push", "mine", "./other")[0] == 0
    assert "load_policy(\"other\", trust=['evil'])" in Path("other/README.md").read_text()
    assert "evil" not in sys.modules
    assert not Path("imported").exists()


def test_a_hostile_name_stays_a_name(shared, command):
    values = yaml.safe_load((shared / "config.yaml").read_text())
    name = "a\x1b[2J`b`\n---\ntags: [x]"
    (shared / "config.yaml").write_text(yaml.safe_dump({**values, "env": name}))
    status, out, _ = command("pull", "./hub/swing", "--out", "mine")
    assert status == 0
    assert out.replace("\n", "").isprintable()
    assert command("push", "mine", "./other")[0] == 0
    head, text = front_of(Path("other/README.md"))
    assert "x" not in head["tags"]
    assert text.replace("\n", "").isprintable()


def pickled(shared):
    import pickle

    (shared / "checkpoints" / "best.safetensors").write_bytes(pickle.dumps({"policy": 1}))


def bomb(shared):
    lines = ["recipe: ppo", "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"{chr(c + 1)}: &{chr(c + 1)} [{', '.join(['*' + chr(c)] * 10)}]" for c in range(ord("a"), ord("k"))]
    (shared / "config.yaml").write_text("\n".join(lines))


def circle(shared):
    (shared / "config.yaml").write_text("recipe: ppo\nenv: &x [*x]\n")


def link(shared):
    (shared / "README.md").unlink()
    (shared / "README.md").symlink_to("/etc/hostname")


def linked_folder(shared):
    shutil.move(shared / "checkpoints", "elsewhere")
    (shared / "checkpoints").symlink_to(Path("elsewhere").absolute())


def write(name, text):
    return lambda shared: (shared / name).write_text(text)


def no_policy(shared):
    save_checkpoint(shared / "checkpoints" / "best.safetensors", {"frames": 3})


DAMAGED = {
    "pickle": (pickled, "best.safetensors is damaged"),
    "no-weights": (lambda shared: shutil.rmtree(shared / "checkpoints"), "there is no checkpoint at the shared"),
    "no-policy": (no_policy, "has no policy of an environment"),
    "no-recipe": (write("config.yaml", "env: pendulum\n"), "the shared config.yaml is damaged: it names no recipe"),
    "no-yaml": (write("config.yaml", "a: [\n"), "the shared config.yaml is damaged"),
    "python-yaml": (write("config.yaml", "!!python/object/apply:os.system ['true']\n"), "config.yaml is damaged"),
    "bomb": (bomb, "the shared config.yaml is damaged: it holds more than any settings"),
    "circle": (circle, "the shared config.yaml is damaged: it holds more than any settings"),
    "no-config": (lambda shared: (shared / "config.yaml").unlink(), "is no shared run: it has no config.yaml"),
    "summary-of-another-kind": (write("summary.json", "[1]"), "the shared summary.json is damaged: it holds list"),
    "deep-summary": (write("summary.json", "[" * 100_000), "the shared summary.json is damaged"),
    "metrics": (write("metrics.csv", "a,b\n1,2\n"), "the shared metrics.csv is damaged"),
    "link": (link, "is a link, which is not followed"),
    "linked-folder": (linked_folder, "is a link, which is not followed"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_or_hostile_folder_is_rejected_and_leaves_nothing(case, shared, command):
    damage, said = DAMAGED[case]
    damage(shared)
    before = {path.name for path in Path.cwd().iterdir()}
    status, out, err = command("pull", "./hub/swing", "--out", "mine")
    assert (status, out) == (1, "")
    assert said in err
    assert len(err.splitlines()) == 1
    assert {path.name for path in Path.cwd().iterdir()} == before


@pytest.mark.parametrize("name", ["policy", "statistics"])
@pytest.mark.parametrize("value", [{}, {"w": 3}, [3], "text", None, {"w": [[1]]}], ids=str)
def test_weights_of_another_form_do_not_fit(name, value, shared, command):
    path = shared / "checkpoints" / "best.safetensors"
    save_checkpoint(path, {**load_checkpoint(path), name: value})
    if command("pull", "./hub/swing", "--out", "mine")[0] == 0 and main(["eval", "mine", "--episodes", "1"]) == 0:
        assert name == "statistics"
        assert not value  # those of a run that does not normalize


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["push", "nothing", "./there"], "nothing is not a run folder"),
        (["push", "run", "run"], "run exists here, and is no name of the Hub's: write ./run"),
        (["push", "run", "./run"], "run exists and is no shared run; name a new folder"),
        (["push", "run", "swing"], "'swing' names no place: write ./FOLDER, or OWNER/NAME"),
        (["push", "run", "a/b/c"], "'a/b/c' names no place"),
        (["push", "run", "./there", "--private"], "--private is for the Hugging Face Hub"),
        (["pull", "./nothing"], "nothing is no shared run: it has no config.yaml"),
        (["pull", "./hub/swing", "--out", "run"], "run exists already and is not overwritten"),
        (["pull", "./hub/swing", "--out", "run/config.yaml/x"], "cannot be written"),
        (["pull", "."], "has no name for a folder: name one with --out"),
        (["card", "nothing"], "nothing is not a run folder"),
    ],
)
def test_wrong_words_are_explained(words, said, shared, command):
    status, _, err = command(*words)
    assert status == 1
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.skipif(find_spec("huggingface_hub") is not None, reason="the library is installed")
def test_the_missing_library_is_named(run, command):
    status, _, err = command("push", "run", "me/swing")
    assert status == 1
    assert "pip install 'rl-trainers[hub]'" in err


# ---- the Hugging Face Hub, by the functions of its library that are used


@pytest.fixture
def library(monkeypatch, tmp_path):
    """What `rl hub` calls of huggingface_hub, with a folder as the network."""
    remote = tmp_path / "remote"
    module = ModuleType("huggingface_hub")
    module.calls = []

    class HfApi:
        def create_repo(self, repo_id, *, private=None, exist_ok=False):
            assert exist_ok
            module.calls.append(("create", repo_id, private))
            return f"https://huggingface.co/{repo_id}"

        def upload_folder(self, *, repo_id, folder_path, commit_message=None, delete_patterns=None):
            for name in delete_patterns:
                (remote / repo_id / name).unlink(missing_ok=True)
            shutil.copytree(folder_path, remote / repo_id, dirs_exist_ok=True)

    def snapshot_download(repo_id, *, revision=None, allow_patterns=None, local_dir=None):
        module.calls.append(("download", repo_id, revision))
        if not (remote / repo_id).exists():
            raise OSError("404 Client Error.\nRepository Not Found")
        for name in allow_patterns:
            if (remote / repo_id / name).is_file():
                (Path(local_dir) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(remote / repo_id / name, Path(local_dir) / name)
        (Path(local_dir) / ".cache").mkdir()

    module.HfApi, module.snapshot_download = HfApi, snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return module


def test_a_repository_of_the_hub_takes_and_gives_a_run(library, run, trained, command):
    status, out, _ = command("push", "run", "me/swing", "--private")
    assert (status, out) == (0, "run is shared: https://huggingface.co/me/swing\n")
    status, out, _ = command("pull", "me/swing", "--revision", "v1")
    assert status == 0
    assert out.endswith("rl play runs/swing\n")
    assert library.calls == [("create", "me/swing", True), ("download", "me/swing", "v1")]
    assert evaluate("runs/swing", episodes=2, seed=1).tolist() == evaluate(trained, episodes=2, seed=1).tolist()
    assert "rl hub pull me/swing --out swing" in Path("runs/swing/README.md").read_text()
    assert [one.name for one in Path("runs").iterdir()] == ["swing"]
    assert not Path("runs/swing/.cache").exists()


def test_errors_of_the_network_are_one_line(library, run, command, monkeypatch):
    status, _, err = command("pull", "me/other")
    assert status == 1
    assert err.startswith("rl: the Hub did not give me/other: 404 Client Error. Repository Not Found.")
    assert len(err.splitlines()) == 1

    def offline(*args, **kwargs):
        raise ConnectionError("no network")

    monkeypatch.setattr(library.HfApi, "upload_folder", offline)
    status, _, err = command("push", "run", "me/swing")
    assert status == 1
    assert err.startswith("rl: the Hub did not take me/swing: no network. `hf auth login` signs in")
