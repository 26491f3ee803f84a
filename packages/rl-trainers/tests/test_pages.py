"""Pages: what an algorithm is made of, what it imports, and how a user begins one."""

import ast
import inspect
import json
import subprocess
import sys
import traceback
from importlib import import_module
from pathlib import Path

import pytest

import rl.trainers
from rl.core import components, load
from rl.core.cli import main
from rl.core.errors import ArgumentError
from rl.trainers import Algorithm, PPOConfig
from rl.trainers.algorithm import LOOPS
from rl.trainers.algorithms import ppo

#: those of this package; others have a function in place of a loop
ALGORITHMS = {
    one.name: one
    for one in (load("recipe", component.name) for component in components("recipe"))
    if one.config.__module__.startswith("rl.trainers.")
}
SOURCES = Path(rl.trainers.__file__).parent
#: number of arguments with which loops call the parts of a page, as their docstrings say
PARTS = {"policy": 2, "critic": 2, "explore": 2, "sequences": 2, "loss": 3, "before": 3, "updater": 4, "reader": 4}
WORDS = ["--env", "pendulum", "--total-frames", "64", "--frames-per-batch", "32", "--learning-starts", "32",
         "--batch-size", "16", "--num-cells", "8", "--eval-episodes", "1", "--final-eval-episodes", "1",
         "--max-episode-steps", "20", "--loggers", "csv", "--display", "none"]  # fmt: skip


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=list(ALGORITHMS))
def test_the_parts_of_an_algorithm_fit_its_loop(algorithm):
    # the parts of an algorithm have no public name: a page gives them, its loop reads them
    parts, loop = {"policy": algorithm._policy, **algorithm._parts}, algorithm._loop
    assert loop in LOOPS
    train = import_module(f"rl.trainers.loops.{loop}").train
    inspect.signature(train).bind(algorithm, algorithm.config(), **parts, out=None, resume=None)
    options = {name for name, one in inspect.signature(train).parameters.items() if one.kind is one.KEYWORD_ONLY}
    assert parts.keys() <= options
    for name, count in PARTS.items():
        if callable(parts.get(name)):
            inspect.signature(parts[name]).bind(*range(count))


def test_an_unknown_loop_is_rejected():
    with pytest.raises(ArgumentError, match="no loop 'onpolicy'; name one of on_policy, off_policy, q_learning"):
        Algorithm(PPOConfig, loop="onpolicy", policy=ppo.policy)


ONE_STEP = """
import sys
from rl.trainers.algorithms.td3 import TD3Config, noise, policy, td3_loss
assert "torch" not in sys.modules and "tensordict" not in sys.modules
import torch
from rl.envs import PendulumEnv
from tensordict.nn import TensorDictSequential
from rl.trainers.loops.updater import Updater, adam
env, config = PendulumEnv(batch_size=[4], seed=0), TD3Config(env="pendulum", num_cells=(8,))
actor = policy(config, env)
loss = td3_loss(config, env, actor)
update = Updater(config, loss, [adam(loss.parameters(), 1e-3)], {"loss_critic": "loss_qvalue"})
batch = env.rollout(8, TensorDictSequential(actor, noise(config, env)))
before = [one.clone() for one in loss.parameters()]
update.step(update.forward(loss, batch.reshape(-1)))
assert any(not torch.equal(a, b) for a, b in zip(before, loss.parameters()))
print(*sorted(name for name in sys.modules if name.startswith("rl.trainers.")))
"""


def test_a_page_needs_few_files_for_a_gradient_step():
    """An author has to read these at most; the run around it (folder, display, evaluation) is not among them."""
    done = subprocess.run([sys.executable, "-c", ONE_STEP], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = done.stdout.split()
    assert "rl.trainers.algorithms.td3" in files
    assert "rl.trainers.run" not in files
    assert len(files) <= 20, files


def imported_files(file):
    """Return the files of rl-trainers that one imports, also inside of functions; not for types alone."""
    found, waiting = set(), list(ast.parse(file.read_text()).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rl.trainers"):
            module = SOURCES.joinpath(*node.module.split(".")[2:])
            names = [module / f"{one.name}.py" for one in node.names]
            found |= {one for one in names if one.is_file()} or {module.with_suffix(".py")}
        waiting += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("page", sorted((SOURCES / "algorithms").glob("[!_]*.py")), ids=lambda path: path.stem)
def test_a_page_reaches_few_files(page):
    reached, waiting = set(), [page]
    while waiting:
        file = waiting.pop()
        if file not in reached:
            reached.add(file)
            waiting += imported_files(file)
    names = sorted(str(file.relative_to(SOURCES)) for file in reached)
    assert "run.py" not in names
    assert len(names) <= 20, names


def test_an_algorithm_stands_in_four_files_of_the_package():
    """Page, presets, table of components and list of public names; with its test and its page of the docs six."""
    found = {
        path for path in SOURCES.parent.rglob("*") if path.suffix in (".py", ".yaml") and "redq" in path.read_text()
    }
    names = {str(path.relative_to(SOURCES.parent)) for path in found}
    assert names == {
        "plugins/trainers.py",
        "trainers/__init__.py",
        "trainers/algorithms/sac.py",
        "trainers/presets/sac.yaml",
    }


def test_a_new_page_trains_resumes_and_is_evaluated(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["new", "algorithm", "my_own_td3.py", "--like", "td3"]) == 0
    assert "rl train ./my_own_td3.py" in capsys.readouterr().out
    page = (tmp_path / "my_own_td3.py").read_text()
    assert 'recipe: ClassVar[str] = "my-own-td3"' in page
    assert "DDPG" not in page
    assert main(["train", "./my_own_td3.py", *WORDS, "--policy-delay", "1", "--out", "run"]) == 0
    assert main(["train", "./my_own_td3.py", "--resume", "run", "--trust", "my_own_td3", "--total-frames", "128",
                 "--display", "none"]) == 0  # fmt: skip
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["frames"] == 128
    assert main(["train", "td3", *WORDS, "--policy-delay", "1", "--total-frames", "128", "--out", "original"]) == 0
    returns = [
        json.loads((tmp_path / run / "summary.json").read_text())["last/return_mean"] for run in ("run", "original")
    ]
    assert returns[0] == returns[1]
    capsys.readouterr()
    assert main(["eval", "run", "--episodes", "1", "--trust", "my_own_td3"]) == 0
    assert "over 1 episode" in capsys.readouterr().out


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_new_page_may_begin_as_any_algorithm(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    module = f"new_{name.replace('-', '_')}"
    assert main(["new", "algorithm", f"{module}.py", "--like", name]) == 0
    assert main(["train", f"./{module}.py", "--help"]) == 0
    sys.modules.pop(module)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["there.py"], "there.py exists: choose another name", id="exists"),
        pytest.param(["mine.py", "--like", "td4"], "there is no recipe 'td4'; did you mean 'td3'?", id="unknown"),
        pytest.param(["my-td3.py"], "my-td3.py is no name of a module: write a name such as my_ppo.py", id="hyphen"),
        pytest.param(["mine.txt"], "mine.txt is no name of a module", id="suffix"),
    ],
)
def test_a_page_that_cannot_be_written_is_rejected(words, message, tmp_path, capsys):
    (tmp_path / "there.py").write_text("mine")
    assert main(["new", "algorithm", *words]) in (1, 2)
    assert message in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("there.py", "mine")]


def test_a_page_that_raises_when_it_is_imported_is_named_with_its_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    main(["new", "algorithm", "raising_td3.py", "--like", "td3"])
    lines = (tmp_path / "raising_td3.py").read_text().splitlines()
    (tmp_path / "raising_td3.py").write_text("\n".join([*lines, "half = 1 / 0"]))
    capsys.readouterr()
    assert main(["train", "./raising_td3.py", *WORDS]) == 1
    error = capsys.readouterr().err
    assert f"raising_td3.py, line {len(lines) + 1})" in error
    assert "ZeroDivisionError: division by zero" in error


def test_a_function_of_a_page_that_raises_is_named_with_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    main(["new", "algorithm", "failing_td3.py", "--like", "td3"])
    page = (tmp_path / "failing_td3.py").read_text().replace("    half = ", "    1 / 0\n    half = ")
    (tmp_path / "failing_td3.py").write_text(page)
    with pytest.raises(ZeroDivisionError) as caught:
        main(["train", "./failing_td3.py", *WORDS, "--out", "run"])
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (Path(last.filename).name, last.line) == ("failing_td3.py", "1 / 0")
    assert not (tmp_path / "run").exists()
