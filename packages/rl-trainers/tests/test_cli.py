import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from rl.core.cli import main
from rl.core.component import Component
from rl.core.errors import RLError
from rl.core.registry import Registry, default, load
from rl.trainers import Algorithm, PPOConfig, Recipe, RunConfig, TrainResult, train_ppo

# the configuration of a command line, without the training that follows
from rl.trainers._arguments import parse_train
from rl.trainers.algorithms import ppo
from rl.trainers.config import config_fields
from rl.trainers.evaluation import load_config

TINY = ["--total-frames", "256", "--num-envs", "2", "--frames-per-batch", "128", "--minibatch-size", "64"]
TINY += ["--eval-episodes", "1", "--final-eval-episodes", "2", "--loggers", "[csv]", "--display", "plain"]


def test_train_then_eval(capsys, tmp_path):
    assert main(["train", "ppo", "--env", "test/guess", *TINY, "--out", "run"]) == 0
    out = capsys.readouterr().out
    assert "trained 256 frames in" in out
    assert "run folder: run" in out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["frames"] == 256
    assert summary["seed"] == 0
    assert {
        "best/return_mean",
        "best/return_std",
        "last/return_mean",
        "time/seconds",
        "time/cpu_seconds",
    } <= summary.keys()
    assert {"torch", "rl-core", "rl-trainers", "python"} <= summary["versions"].keys()
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        ".lock", "checkpoints", "config.yaml", "episodes.csv", "history.json", "learning_curve.png", "metrics.csv",
        "summary.json",
    }  # fmt: skip
    assert main(["eval", "run", "--episodes", "3"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("return ")
    assert line.rstrip().endswith("over 3 episodes (best policy, 256 frames)")
    assert main(["eval", "run", "--episodes", "3", "--stochastic", "--seed", "5"]) == 0


def test_nothing_is_overwritten(capsys, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("keep")
    assert main(["train", "--env", "test/guess", *TINY, "--out", "run"]) == 1
    error = capsys.readouterr().err
    assert "the run folder run exists already and is not overwritten" in error
    assert "--resume run" in error
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_runs_get_folders_of_their_own(tmp_path):
    for _ in range(2):
        assert main(["train", "--env", "test/guess", *TINY, "--seed", "7"]) == 0
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"ppo-test-guess-7-1", "ppo-test-guess-7-2"}


def test_another_runs_config_is_accepted(tmp_path):
    assert main(["train", "dqn", "--env", "test/guess", "--gamma", "0.5", "--total-frames", "64",
                 "--frames-per-batch", "64", "--display", "none", "--out", "a"]) == 0  # fmt: skip
    assert main(["train", "--config", "a/config.yaml", "--seed", "3", "--display", "none", "--out", "b"]) == 0
    (recipe, a), (_, b) = load_config("a"), load_config("b")
    assert recipe.name == "dqn"
    assert (a.gamma, a.seed, a.env) == (0.5, 0, "test/guess")
    assert (b.gamma, b.seed, b.env) == (0.5, 3, "test/guess")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["ppoo"], "no recipe 'ppoo'; did you mean 'ppo'?", id="recipe"),
        pytest.param(["CartPole-v1"], "to train on an environment: rl train --env CartPole-v1", id="env-as-recipe"),
        pytest.param(["--env-kwargs", "[1]"], "--env-kwargs must be arguments, like frame_skip=4 or", id="no-mapping"),
        pytest.param(["--env-kwargs", "size:2"], "like frame_skip=4 or '{frame_skip: 4}'", id="colon"),
        pytest.param(["--env-kwargs", "size=2", "big=1"], "cannot understand 'big=1'", id="two-arguments"),
        pytest.param(["--env-kwargs", "{size:2}"], "a space after each colon", id="no-space"),
        pytest.param(["--transform"], "--transform needs a value", id="no-value"),
        pytest.param(["--config", "out.yaml"], "out.yaml sets 'out', which a config file cannot", id="out-in-file"),
        pytest.param(["--config", "resume.yaml"], "sets 'resume', which a config file cannot", id="resume-in-file"),
        pytest.param(["--env-kwargs", "[" * 20_000], "", id="deep-value"),
        pytest.param(["--config", "deep.yaml"], "config file deep.yaml is not YAML", id="deep-file"),
        pytest.param(["--learnin-rate", "1"], "no option --learnin-rate; did you mean --learning-rate?", id="option"),
        pytest.param(["dt", "--target-return", "high"], "--target-return must be a number, got high", id="or-none"),
        pytest.param(["--learning-rate", "fast"], "--learning-rate must be a number, got fast", id="type"),
        pytest.param(["--num-envs", "2.5"], "--num-envs must be an integer, got 2.5", id="fraction"),
        pytest.param(["--num-envs", "1.5e0"], "--num-envs must be an integer, got 1.5", id="fraction-e"),
        pytest.param(["--num-cells", "64,x"], "--num-cells must be an integer, got x", id="no-list"),
        pytest.param(["--atari", "maybe"], "--atari must be true or false, got maybe", id="no-switch"),
        pytest.param(["PPO"], "no recipe 'PPO'; did you mean 'ppo'?", id="upper-case"),
        pytest.param(["ppo_rnd"], "no recipe 'ppo_rnd'; did you mean 'ppo-rnd'?", id="underscore"),
        pytest.param(["--lr", "1"], "no option --lr; here it is --learning-rate.", id="lr"),
        pytest.param(["--n-steps", "1"], "here it is --frames-per-batch.", id="n-steps"),
        pytest.param(["--ent-coef=1"], "here it is --entropy-coeff.", id="ent-coef"),
        pytest.param(["sac", "--ent_coef=1"], "here it is --alpha-init.", id="ent-coef-sac"),
        pytest.param(["--total-timesteps", "1"], "here it is --total-frames.", id="total-timesteps"),
        pytest.param(["--algo", "ppo"], "the recipe is the first word, as in rl train ppo.", id="algo"),
        pytest.param(["ppo", "--batch-size", "1"], "here it is --minibatch-size.", id="batch-size"),
        pytest.param(["--seed", "3", "4"], "cannot understand '4'; the recipe comes first, each", id="two-values"),
        pytest.param(["--seed", "3", "ppo"], "cannot understand 'ppo'; the recipe comes first", id="recipe-last"),
        pytest.param(
            ["--display", "ritch"], "--display must be one of auto, rich, plain, none, got 'ritch'", id="display"
        ),
        pytest.param(["--clip-epsilon", "1.5"], "clip_epsilon must be in (0, 1), got 1.5", id="range"),
        pytest.param(
            ["--frames-per-batch", "100", "--num-envs", "3"], "a multiple of num_envs (3), got 100", id="pair"
        ),
        pytest.param(["--config", "none.yaml"], "config file none.yaml cannot be read: No such file", id="no-file"),
        pytest.param(["--config", "bad.yaml"], "config file bad.yaml is not YAML", id="bad-file"),
        pytest.param(["--config", "list.yaml"], "config file list.yaml holds list", id="list-file"),
        pytest.param(["--config", "typo.yaml"], "no setting gama; did you mean gamma?", id="bad-key"),
        pytest.param(["--config", "value.yaml"], "gamma must be in [0, 1], got 7", id="bad-value"),
        pytest.param(["dqn", "--config", "ppo.yaml"], "is about the recipe 'ppo'", id="other-recipe"),
        pytest.param(["--out", "a", "--resume", "old"], "remove --out", id="out-and-resume"),
    ],
)
def test_what_cannot_be_understood_is_reported_with_status_2(words, message, capsys, tmp_path):
    files = {
        "bad.yaml": "a: [",
        "list.yaml": "- 1",
        "typo.yaml": "gama: 0.9",
        "value.yaml": "gamma: 7",
        "out.yaml": "out: elsewhere",
        "resume.yaml": "resume: old",
        "deep.yaml": "[" * 20_000,
        "ppo.yaml": "recipe: ppo",
        "old/config.yaml": "recipe: ppo",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert main(["train", *words]) == 2
    assert message in capsys.readouterr().err
    assert {p.name for p in tmp_path.iterdir()} == {name.split("/")[0] for name in files}


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        pytest.param("--env-kwargs size=5", "env_kwargs", {"size": 5}, id="argument"),
        pytest.param(
            "--env-kwargs=size=5,color=red,at=[1,2],on=true",
            "env_kwargs",
            {"size": 5, "color": "red", "at": [1, 2], "on": True},
            id="arguments",
        ),
        pytest.param('--env-kwargs {"size":5,"low":-1e-3}', "env_kwargs", {"size": 5, "low": -1e-3}, id="json"),
        pytest.param("--env-kwargs text=a=b", "env_kwargs", {"text": "a=b"}, id="sign-in-value"),
        pytest.param(
            "--transform step-counter:max_steps=4 --transform reward-sum",
            "transform",
            ("step-counter:{max_steps: 4}", "reward-sum"),
            id="transforms",
        ),
        pytest.param("--wrapper my_env:Wrap:size=5", "wrapper", ("my_env:Wrap:{size: 5}",), id="wrapper"),
        pytest.param("--wrapper my_env:Wrap", "wrapper", ("my_env:Wrap",), id="no-arguments"),
        pytest.param(
            "--loggers csv,wandb:project=maze,entity=me,tensorboard",
            "loggers",
            ("csv", "wandb:{project: maze, entity: me}", "tensorboard"),
            id="loggers",
        ),
        pytest.param(
            "--loggers=csv,wandb:{project:_maze,_entity:_me}",
            "loggers",
            ("csv", "wandb:{project: maze, entity: me}"),
            id="logger-braces",
        ),
    ],
)
def test_arguments_of_what_is_named_are_typed_as_pairs_or_as_a_mapping(words, name, value):
    given = [word.replace("_", " ") if "{project" in word else word for word in words.split()]
    assert getattr(parse_train(["ppo", *given]).config, name) == value


def test_a_sampler_is_named_with_pairs():
    config = parse_train(["dqn", "--sampler", "prioritized:alpha=0.6,beta=0.4"]).config
    assert config.sampler == "prioritized:{alpha: 0.6, beta: 0.4}"


def test_pairs_in_arguments_name_no_code_by_themselves(tmp_path):
    """They stand in the run folder as a mapping, whose values are looked at as ever."""
    (tmp_path / "config.yaml").write_text("recipe: ppo\ntransform: ['step-counter:{at: os:getcwd}']\n")
    with pytest.raises(RLError, match="names code of the module os"):
        parse_train(["--config", "config.yaml"])


@pytest.mark.parametrize(
    ("env", "message"),
    [
        pytest.param("./my_env.py", "names a file; in the folder of my_env.py write my_env:MyEnv", id="file"),
        pytest.param("my_env.py:Maze", "names a file; in the folder of my_env.py write my_env:Maze", id="file-class"),
        pytest.param("lib/my_env.py:Maze", "write my_env:Maze", id="folder-file-class"),
        pytest.param("my env", "'my env' has the wrong form", id="space"),
        pytest.param("my_env:", "'my_env:' has the wrong form", id="nothing-in-module"),
        pytest.param(":Maze", "':Maze' has the wrong form", id="no-module"),
        pytest.param("a:b:c", "'a:b:c' has the wrong form", id="two-colons"),
        pytest.param("gym/", "'gym/' has the wrong form", id="component-slash"),
        pytest.param("..", "'..' has the wrong form", id="dots"),
        pytest.param("/tmp/x", "has the wrong form", id="path"),
        pytest.param("a..b:Maze", "'a..b' is no name of a module", id="dots-in-module"),
        pytest.param("a-b:Maze", "'a-b' is no name of a module", id="hyphen-in-module"),
        pytest.param("CartPole-v1-", "Gymnasium knows no environment 'CartPole-v1-'", id="hyphen"),
        pytest.param("Cart$Pole", "'Cart$Pole' cannot be created, Gymnasium says: Malformed", id="dollar"),
        pytest.param("CartPol-v1", "Did you mean 'CartPole-v1'", id="gymnasium"),
        pytest.param("gym/CartPol-v1", "Did you mean 'CartPole-v1'", id="component-id"),
        pytest.param("test/gues", "did you mean 'test/guess'", id="component"),
        pytest.param("gym", "takes an id: write gym/ID", id="no-id"),
        pytest.param(
            "highway/merge-v0",
            "pip install highway-env, and name the module that registers them: 'highway_env:highway/merge-v0'",
            id="other-package",
        ),
        pytest.param("tic-tac-toe", "recipes train one agent with one 'reward'", id="two-players"),
        pytest.param("a:b:c", "'a:b:c' has the wrong form; write a Gymnasium id", id="two-colons"),
        pytest.param("nowhere:Maze", "there is no module 'nowhere'; install it, or run the command in", id="no-module"),
    ],
)
def test_an_unknown_environment_is_named_with_the_nearest(env, message, capsys, tmp_path):
    assert main(["train", "--env", env, *TINY, "--out", "run"]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_help_names_every_setting_without_torch():
    code = (
        "import sys; from rl.core.cli import main; status = main(['train', 'ppo', '--help']);"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    text = " ".join(done.stdout.split())
    for part in ("--total-frames", "--lmbda", "Decay of the advantage estimator", "default: 0.95", "--resume"):
        assert part in text


def test_switches_need_no_value_and_lists_no_brackets():
    words = [
        "--normalize-observation",
        "--num-cells",
        "64,32",
        "--compile",
        "--loggers=csv",
        "--observation-indices",
        "0,2",
    ]
    config = parse_train(["ppo", *words, "--anneal-lr"]).config
    assert (config.normalize_observation, config.compile, config.anneal_lr) == (True, True, True)
    assert (config.num_cells, config.loggers, config.observation_indices) == ((64, 32), ("csv",), (0, 2))
    same = ["--normalize-observation=true", "--num_cells=[64,32]", "--compile", "true", "--loggers", "[csv]"]
    assert parse_train(["ppo", *same, "--observation-indices=[0,2]"]).config == config
    assert parse_train(["ppo", "--num-cells", "16", "--anneal-lr", "false"]).config.num_cells == (16,)
    assert parse_train(["dqn", "--atari", "--env", "ALE/Pong-v5"]).config.atari
    for text, loggers in (("csv, tensorboard", ("csv", "tensorboard")), (" csv,,", ("csv",)), ("", ())):
        assert parse_train(["ppo", f"--loggers={text}"]).config.loggers == loggers
        assert parse_train(["ppo", "--loggers", text]).config.loggers == loggers
    assert parse_train(["ppo", "--observation-indices", ""]).config.observation_indices == ()


def test_every_hint_about_another_project_names_an_option():
    # the table of other projects' options, looked through for options that do not exist
    from rl.trainers import _arguments as arguments

    known = {field.name for component in default().components("recipe")
             for field in config_fields(default().load("recipe", component.name).config)}  # fmt: skip
    named = {name for names in arguments._ELSEWHERE.values() for name in names} - {"out", "display"}
    assert named <= known


def test_help_may_come_before_the_recipe(capsys):
    assert main(["train", "--help", "dqn"]) == 0
    first = capsys.readouterr().out
    assert main(["train", "dqn", "--help"]) == 0
    assert first == capsys.readouterr().out


OWN_RECIPE = """
from dataclasses import dataclass
from typing import ClassVar
from rl.trainers import Algorithm, PPOConfig
from rl.trainers.algorithms.ppo import policy, updater

@dataclass(frozen=True, kw_only=True)
class MyConfig(PPOConfig):
    recipe: ClassVar[str] = "mine"
    total_frames: int = 256

MINE = Algorithm(MyConfig, loop="on_policy", policy=policy, updater=updater)

class Printing:
    def __init__(self, folder, *, resume_step=None):
        self.file = open(folder / "mine.txt", "a")
    def log_scalars(self, values, step):
        self.file.write(f"{step}\\n")
    def close(self):
        self.file.close()
"""


def test_a_recipe_and_a_logger_of_a_module(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_recipe_of_cli.py").write_text(OWN_RECIPE)
    monkeypatch.syspath_prepend(tmp_path)
    loggers = ["--loggers", "csv,own_recipe_of_cli:Printing"]
    assert main(["train", "own_recipe_of_cli:MINE", "--env", "test/guess", *TINY, *loggers, "--out", "run"]) == 0
    assert (tmp_path / "run" / "mine.txt").read_text().split()[-1] == "256"
    assert "rl eval run --trust own_recipe_of_cli\n" in capsys.readouterr().out
    assert "recipe: own_recipe_of_cli:MINE" in (tmp_path / "run" / "config.yaml").read_text()
    assert main(["eval", "run"]) == 1
    trust = ["--trust", "own_recipe_of_cli"]
    assert main(["eval", "run", "--episodes", "2", *trust]) == 0
    more = ["--resume", "run", "--total-frames", "512", "--display", "none", *trust]
    assert main(["train", *more]) == 0
    assert main(["train", "own_recipe_of_cli:MINE", *more[:3], "768", *more[4:]]) == 0
    assert main(["train", "own_recipe_of_cli:policy"]) == 2
    assert "is a function; name an object of rl.trainers.Algorithm" in capsys.readouterr().err


def test_preprocessing_is_set_by_options(capsys):
    words = ["--normalize-observation", "true", "--normalize-reward=true", "--frame-stack", "4", "--frame-skip", "2"]
    config = parse_train(["dqn", *words]).config
    assert (config.normalize_observation, config.normalize_reward, config.atari) == (True, True, False)
    assert (config.frame_stack, config.frame_skip) == (4, 2)
    for words in (["--frame-stack", "0"], ["--frame-skip", "0"], ["--atari", "true", "--frame-stack", "2"]):
        assert main(["train", *words]) == 2
        assert f"{words[-2][2:].replace('-', '_')} must be " in capsys.readouterr().err


def test_both_spellings_of_an_option_are_understood():
    parsed = parse_train(["ppo", "--total-frames=3000", "--lmbda", "0.5", "--num-cells", "[8, 8]"])
    assert (parsed.config.total_frames, parsed.config.lmbda, parsed.config.num_cells) == (3000, 0.5, (8, 8))
    assert parse_train([]).config == parse_train(["ppo"]).config
    assert parse_train([]).config.env == "CartPole-v1"


def test_yaml_numbers_in_every_spelling_are_numbers(tmp_path):
    (tmp_path / "c.yaml").write_text("learning-rate: 1e-3\ntotal_frames: 2048\nnum_cells: [8]\nanneal_lr: no\n")
    config = parse_train(["--config", "c.yaml"]).config
    assert (config.learning_rate, config.total_frames, config.num_cells, config.anneal_lr) == (1e-3, 2048, (8,), False)


@pytest.mark.parametrize("words", [["--total-frames", "2e4"], ["--total-frames=2E4"], ["--config", "c.yaml"]])
def test_integers_may_be_written_with_an_exponent(words, tmp_path):
    (tmp_path / "c.yaml").write_text("total_frames: 2e4\n")
    frames = parse_train(words).config.total_frames
    assert (frames, type(frames)) == (20_000, int)


def test_a_run_without_an_evaluation_is_played_with_its_last_policy(capsys, tmp_path):
    stopped = PPOConfig(env="test/guess", eval_every=10_000, loggers=("csv",))
    train_ppo(stopped, out="run", display="none", should_stop=lambda frames: True)
    assert main(["eval", "run", "--episodes", "2"]) == 0
    assert "(last policy, 1024 frames)" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_signal_saves_and_says_how_to_go_on(number, tmp_path):
    words = [sys.executable, "-W", "ignore", "-m", "rl.core", "train", "ppo", "--total-frames", "10000000",
             "--eval-every", "10000000", "--loggers", "[csv]", "--log-every", "1024", "--display", "plain",
             "--out", "run"]  # fmt: skip
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "run" / "metrics.csv"
    deadline = time.monotonic() + 120
    while not metrics.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "rl train ppo --resume run" in out
    assert not (tmp_path / "run" / "summary.json").exists()
    frames = int(metrics.read_text().splitlines()[-1].split(",")[0])
    assert main(["train", "--resume", "run", "--total-frames", str(frames + 1024), "--display", "none"]) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["frames"] >= frames + 1024


def test_a_resume_without_a_run_says_so(capsys):
    assert main(["train", "--resume", "nowhere"]) == 1
    assert "nowhere is not a run folder: it does not exist" in capsys.readouterr().err


def test_a_recipe_of_a_plugin_is_found_and_gets_its_config(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Config(RunConfig):
        """A recipe that trains nothing.

        Args:
            depth: how deep.
        """

        depth: int = 1

    got = []

    def train(config, *, out, resume, display, should_stop):
        got.append((config, out, resume, display))
        return TrainResult(Path("x"), 0, 0.0)

    module = ModuleType("rl_trainers_test_recipe")
    module.train = train
    module.RECIPE = Recipe("nothing", Config, f"{module.__name__}:train", f"{module.__name__}:train")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("rl.core.registry._default", [Registry.installed()])  # other tests list the recipes
    default().add(Component("recipe", "nothing", f"{module.__name__}:RECIPE"))
    assert main(["train", "nothing", "--depth", "3", "--out", "there", "--display", "none"]) == 0
    assert got == [(Config(depth=3), "there", None, "none")]


def test_a_recipe_with_the_name_of_an_installed_one_is_another_recipe(monkeypatch):
    module = ModuleType("rl_trainers_test_ppo")
    config = dataclasses.make_dataclass("MyConfig", [], bases=(PPOConfig,), frozen=True, kw_only=True)
    config.__module__ = module.__name__
    module.MINE = Algorithm(config, loop="on_policy", policy=ppo.policy)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert module.MINE.reference == "rl_trainers_test_ppo:MINE"
    assert load("recipe", "ppo").reference == "ppo"


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n"], ids=["empty", "garbage"])
def test_metrics_without_a_header_are_not_plotted_and_can_be_started_again(content, capsys, tmp_path):
    assert main(["train", "--env", "test/guess", *TINY, "--out", "run"]) == 0
    metrics = tmp_path / "run" / "metrics.csv"
    metrics.write_text(content)
    assert main(["plot", "run"]) == 1
    assert "metrics.csv is damaged: its first line is no header" in capsys.readouterr().err
    more = ["train", "--resume", "run", "--total-frames", "384", "--display", "none"]
    if content:
        assert main(more) == 1
        assert "delete the file, and a resumed run begins a new one" in capsys.readouterr().err
        metrics.unlink()
    assert main(more) == 0
    assert main(["plot", "run"]) == 0


def test_eval_says_what_is_wrong(capsys, tmp_path):
    assert main(["eval", "nowhere"]) == 1
    assert "nowhere is not a run folder" in capsys.readouterr().err
    for words, message in (
        (["nowhere", "--episodes", "0"], "--episodes must be above 0, got 0"),
        (["--epsodes", "3"], "there is no option --epsodes; did you mean --episodes? All of them: rl eval --help"),
        (["nowhere", "--episode", "3"], "there is no option --episode; did you mean --episodes?"),
        (["nowhere", "--seed", "-1"], "--seed must be in [0, 2147483647], got -1"),
        (["nowhere", "--episodes", "x"], "invalid int value: 'x'"),
        ([], "required: RUN. More: rl eval --help"),
        (["a", "b"], "unrecognized arguments: b"),
    ):
        capsys.readouterr()
        assert main(["eval", *words]) == 2
        told = capsys.readouterr().err
        assert told.startswith("rl eval: ")
        assert message in told
        assert told.count("\n") == 1
    assert main(["train", "--env", "test/guess", *TINY, "--out", "run"]) == 0
    best = tmp_path / "run" / "checkpoints" / "best.safetensors"
    content = bytearray(best.read_bytes())
    content[-3] ^= 255
    best.write_bytes(content)
    assert main(["eval", "run"]) == 1
    assert "best.safetensors is damaged" in capsys.readouterr().err


def test_a_video_is_written_once(capsys, tmp_path):
    assert main(["train", *TINY, "--out", "run"]) == 0
    assert main(["eval", "run", "--episodes", "1", "--video", "out.gif"]) == 0
    assert (tmp_path / "out.gif").read_bytes().startswith(b"GIF")
    assert sorted(os.listdir(tmp_path)) == ["out.gif", "run"]
    capsys.readouterr()
    assert main(["eval", "run", "--episodes", "1", "--video", "out.gif"]) == 1
    assert "out.gif exists already" in capsys.readouterr().err
    assert main(["eval", "run", "--episodes", "1", "--video", "out.avi"]) == 1
    assert "writes .mp4 or .gif" in capsys.readouterr().err


def test_a_video_as_mp4(tmp_path):
    assert main(["train", *TINY, "--out", "run"]) == 0
    assert main(["eval", "run", "--episodes", "1", "--video", "out.mp4"]) == 0
    assert b"ftyp" in (tmp_path / "out.mp4").read_bytes()[:16]


def test_a_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert main(["eval", "run", "--video", "out.mp4"]) == 1
    assert "pip install 'rl-trainers[video]'" in capsys.readouterr().err
