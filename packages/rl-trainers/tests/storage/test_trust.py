"""Run folders and files are data: what they name is not imported unless it is installed or trusted."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from rl_trainers_test_envs import GuessEnv

from rl.core.cli import main
from rl.core.errors import RLError
from rl.core.registry import components, load
from rl.trainers import PPOConfig, evaluate, load_policy, load_run, train_ppo

# each text of each recipe is checked, without a run folder for each
from rl.trainers._arguments import parse_train
from rl.trainers._named import check_trusted
from rl.trainers.config import config_fields
from rl.trainers.evaluation import load_config

CODE = """
from pathlib import Path
Path("imported").write_text("yes")

def attack(*args, **kwargs):
    Path("called").write_text("yes")
    return "done"
"""
SMALL = {"total_frames": 128, "num_envs": 2, "frames_per_batch": 128, "minibatch_size": 64, "epochs": 1,
         "num_cells": (4,),
         "eval_episodes": 1, "final_eval_episodes": 1, "loggers": ("csv",)}  # fmt: skip
#: settings of ppo or dqn that name code
NAMING = {
    "env": "evil:attack",
    "env of gym": "gym/evil:Attack-v0",
    "env of unity": "unity-mlagents/evil.sh",
    "wrapper": ["evil:attack"],
    "wrapper with arguments": ["evil:attack:{a: 1}"],
    "transform": ["evil:attack"],
    "transform with arguments": ["step-counter:{max_steps: 'evil:attack'}"],
    "wrapper as a mapping": {"evil:attack": None},
    "transform as a set": {"evil:attack"},
    "loggers": ["csv", "evil:attack"],
    "sampler": "evil:attack:{a: 1}",
    "env_kwargs": {"deep": [{"make": "evil:attack"}]},
    "recipe": "evil:attack",
    "ray": "ray://evil:10001",
}


@pytest.fixture
def evil(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    assert "evil" not in sys.modules
    assert not (tmp_path / "imported").exists()
    assert not (tmp_path / "called").exists()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trust") / "run"
    return train_ppo(PPOConfig(env="pendulum", max_episode_steps=20, **SMALL), out=folder, display="none").folder


@pytest.fixture
def hostile(evil, run, tmp_path):
    """Writes a folder and a config file with one more setting."""

    def write(case):
        setting = case.partition(" ")[0]
        recipe = "dqn" if setting == "sampler" else "ppo"
        there = tmp_path / "run"
        shutil.copytree(run, there)
        values = yaml.safe_load((run / "config.yaml").read_text())
        if recipe == "dqn":
            values = {"recipe": "dqn", "env": "CartPole-v1"}
        text = yaml.safe_dump(values | {setting: NAMING[case]})
        (there / "config.yaml").write_text(text)
        Path("config.yaml").write_text(text)
        row = {"recipe": recipe, "env": "CartPole-v1", "frames": 128}
        more = {"workers": 2} if setting == "ray" else {}
        row |= {setting: NAMING[case]} if setting in row else {"settings": {setting: NAMING[case], **more}}
        Path("cases.yaml").write_text(yaml.safe_dump({"cases": [row]}))

    return write


COMMANDS = {
    "eval": ["eval", "run"],
    "dataset": ["dataset", "record", "run", "mine/guess-v0", "--frames", "8"],
    "config": ["train", "--config", "config.yaml", "--out", "new"],
    "resume": ["train", "--resume", "run", "--total-frames", "256"],
    "benchmark": ["benchmark", "cases.yaml", "--out", "new"],
}


def test_a_case_of_a_benchmark_needs_no_trust_for_the_others(evil, tmp_path):
    own = {"recipe": "ppo", "env": "pendulum", "name": "own", "seeds": [0]}
    own["settings"] = {name: [*value] if isinstance(value, tuple) else value for name, value in SMALL.items()}
    own["settings"]["max_episode_steps"] = 20
    others = [{"recipe": "ppo", "env": "evil:attack"}, {"recipe": "evil:attack", "env": "pendulum"}]
    Path("cases.yaml").write_text(yaml.safe_dump({"cases": [*others, own]}))
    assert main(["benchmark", "cases.yaml", "--case", "own", "--out", "new", "--display", "none"]) == 0
    assert [one["name"] for one in json.loads(Path("new/results.json").read_text())["cases"]] == ["own"]
    assert main(["benchmark", "cases.yaml", "--case", "ppo-evil-attack", "--out", "new"]) == 1


@pytest.mark.parametrize("case", NAMING)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_runs_what_a_file_names(command, case, hostile, capsys):
    hostile(case)
    quiet = ["--display", "none"] if command in ("config", "resume") else []
    status = main([*COMMANDS[command], *quiet])
    if command == "benchmark" and " as a " in case:  # its file has lists only
        assert status != 0
        return
    assert status == 1
    error = capsys.readouterr().err
    named = {"env of unity": "unity-mlagents", "ray": "ray://evil:10001"}.get(case, "evil")
    assert f"--trust {named}" in error
    assert ".yaml" in error or "names code of the module" in error
    assert not Path("new").exists()


@pytest.mark.parametrize("case", NAMING)
@pytest.mark.parametrize("read", [load_run, load_policy, load_config, evaluate])
def test_no_function_runs_what_a_run_names(read, case, hostile):
    hostile(case)
    with pytest.raises(RLError, match="trust="):
        read("run")


@pytest.mark.parametrize("name", ["a; touch called #", "a\nb", "$(touch called)", "\x1b[2Ja"])
def test_the_remedy_can_be_pasted_into_a_shell(name):
    with pytest.raises(RLError) as caught:
        check_trusted({"env": f"{name}:b"}, (), "config.yaml")
    text = str(caught.value)
    assert text.isprintable()
    words = shlex.split(text.partition("add ")[2].partition("; in Python")[0])
    assert words == ["--trust", "".join(letter if letter.isprintable() else "?" for letter in name)]


def test_no_setting_of_any_recipe_names_code_unnoticed(evil, tmp_path):
    """Every text of every recipe, with a name of code in it: refused, or never read as code."""
    not_code = {"dataset", "device", "init"}
    for component in components("recipe"):
        recipe = load("recipe", component.name)
        for field in config_fields(recipe.config):
            if field.name in not_code or (field.type is not str and field.type != tuple[str, ...]):
                continue
            value = "evil:attack" if field.type is str else ["evil:attack"]
            with pytest.raises(RLError, match="names code of the module"):
                check_trusted({field.name: value}, (), "config.yaml")


@pytest.mark.parametrize(
    "word",
    [
        pytest.param({"env=evil:attack": 1}, id="in-a-name"),
        pytest.param({"trust": "evil", "env": "evil:attack"}, id="trust"),
        pytest.param({"trust=evil": 1, "wrapper": "evil:attack"}, id="trust-in-a-name"),
    ],
)
def test_a_benchmark_cannot_trust_by_itself(word, evil, capsys):
    Path("cases.yaml").write_text(yaml.safe_dump({"cases": [{"recipe": "ppo", "env": "pendulum", "settings": word}]}))
    assert main(["benchmark", "cases.yaml"]) == 2
    assert "no setting of a recipe" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [{"class_path": "evil.attack"}, {"a": {"class_path": "evil.attack"}}])
def test_arguments_are_not_read_as_classes(arguments, evil):
    Path("config.yaml").write_text(yaml.safe_dump({"env_kwargs": arguments}))
    assert parse_train(["ppo", "--config", "config.yaml"]).config.env_kwargs == arguments
    assert parse_train(["ppo", "--env-kwargs", json.dumps(arguments)]).config.env_kwargs == arguments


def test_a_config_file_cannot_trust_by_itself(evil, capsys):
    Path("config.yaml").write_text("trust: [evil]\nenv: evil:attack\n")
    assert main(["train", "--config", "config.yaml"]) == 2
    assert "sets 'trust', which a config file cannot" in capsys.readouterr().err


def test_a_trusted_module_does_not_lend_its_trust_to_what_it_imports(tmp_path, monkeypatch, capsys):
    (tmp_path / "lender.py").write_text("import os\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lender", raising=False)
    Path("config.yaml").write_text("env: pendulum\ntransform: ['lender:os.getcwd']\n")
    assert main(["train", "--config", "config.yaml", "--trust", "lender", "--display", "none"]) == 1
    assert "leads through the module 'os'; write os:getcwd" in capsys.readouterr().err


OWN = """
import gymnasium, numpy as np

class Own(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.ones(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.ones(2, np.float32), 1.0, self.steps == 8, False, {}
"""


def test_an_environment_of_ones_own_is_trusted_by_name(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_env_of_trust.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    words = [f"--{k.replace('_', '-')}={list(v) if isinstance(v, tuple) else v}" for k, v in SMALL.items()]
    assert main(["train", "ppo", "--env", "own_env_of_trust:Own", "--out", "own", "--display", "plain", *words]) == 0
    assert "evaluate it with: rl eval own --trust own_env_of_trust\n" in capsys.readouterr().out
    assert main(["eval", "own", "--episodes", "2"]) == 1
    error = capsys.readouterr().err
    assert "own/config.yaml names code of the module own_env_of_trust (env: 'own_env_of_trust:Own')" in error
    assert "add --trust own_env_of_trust; in Python trust=('own_env_of_trust',)" in error
    assert main(["eval", "own", "--episodes", "2", "--trust", "own_env_of_trust"]) == 0
    assert "return 8.00 ± 0.00 over 2 episodes" in capsys.readouterr().out
    assert evaluate("own", episodes=2, trust=("own_env_of_trust",)).tolist() == [8.0, 8.0]
    load_policy("own", trust="own_env_of_trust")
    again = ["train", "--resume", "own", "--total-frames", "256", "--display", "none"]
    assert main(again) == 1
    assert main([*again, "--trust", "own_env_of_trust"]) == 0
    fresh = ["train", "--config", "own/config.yaml", "--display", "none", "--out"]
    assert main([*fresh, "a"]) == 1
    assert main([*fresh, "b", "--trust=own_env_of_trust"]) == 0
    assert main([*fresh, "c", "--env", "own_env_of_trust:Own"]) == 0  # typed, so it is the user's


OF_A_RUN = {
    "train": ["train", "--resume", "own", "--total-frames", "256", "--display", "none", "--trust", "own_of_folder"],
    "eval": ["eval", "own", "--episodes", "1", "--trust", "own_of_folder"],
    "plot": ["plot", "own"],
    "dataset": ["dataset", "record", "own", "folder/own-v0", "--frames", "8", "--trust", "own_of_folder"],
}


def test_every_command_finds_the_modules_of_the_current_folder(tmp_path, monkeypatch, capsys):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    Path("own_of_folder.py").write_text(OWN)
    words = [f"--{k.replace('_', '-')}={list(v) if isinstance(v, tuple) else v}" for k, v in SMALL.items()]
    train = ["train", "ppo", "--env", "own_of_folder:Own", "--out", "own", "--display", "none", *words]
    elsewhere = [path for path in sys.path if path not in ("", str(Path.cwd()))]
    for command in (train, *OF_A_RUN.values()):  # the current folder is not where the command itself is
        monkeypatch.setattr(sys, "path", list(elsewhere))
        monkeypatch.delitem(sys.modules, "own_of_folder", raising=False)
        assert main(command) == 0, capsys.readouterr().err


def test_no_command_is_printed_for_code_that_no_other_process_can_import(tmp_path, capsys):
    in_a_script = type("Maze", (GuessEnv,), {"__module__": "__main__", "__qualname__": "Maze"})

    def inside(num_envs):
        return GuessEnv(num_envs)

    for env, name in ((in_a_script, "__main__:Maze"), (inside, "<locals>.inside")):
        config = PPOConfig(env=env, **SMALL)
        for end in (True, False):
            train_ppo(
                config,
                out=tmp_path / f"{name}-{end}",
                display="plain",
                should_stop=None if end else lambda frames: True,
            )
            told = capsys.readouterr().out
            assert re.search(rf"no command can import \S*{name}: put it into a module", told)
            assert "rl eval" not in told
            assert "rl train" not in told
