"""`rl new plugin`: what it writes passes its tests as installed, trains by name, and is the example of template/.

`python tests/test_new_plugin.py` writes template/rl-plugin-example again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from itertools import chain, combinations
from pathlib import Path

import jinja2
import pytest
from fresh_env import CORE_NEEDS, ROOT, FreshEnv, build_wheel, fresh_env
from packaging.requirements import Requirement
from test_plugins import TRAINER_NEEDS

from rl.core._new import PARTS, TEMPLATE, render_all, write_plugin  # the command writes to a folder, this gives texts
from rl.core.cli import main
from rl.core.errors import ArgumentError, RLError

ANSWERS = json.loads((ROOT / "template" / "answers.json").read_text())
NAME = ANSWERS["name"]
CACHES = {"__pycache__", ".pytest_cache", ".ruff_cache"}


def texts(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and not CACHES & set(path.parts))
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_the_example_is_the_output_for_its_answers(tmp_path):
    written = texts(write_plugin(tmp_path, **ANSWERS))
    assert texts(ROOT / "template" / NAME) == written, "run `python tests/test_new_plugin.py`"


def test_jinja_gives_the_same_files():
    """Copier is Jinja with the delimiters of copier.yml."""
    delimiters = ("[%", "%]", "[[", "]]", "[#", "#]")
    keys = ("block_start_string", "block_end_string", "variable_start_string", "variable_end_string")
    options = dict(zip((*keys, "comment_start_string", "comment_end_string"), delimiters, strict=True))
    jinja = jinja2.Environment(
        **options, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    values = {"name": "acme-rl", "module": "acme_rl", "prefix": "acme", "author": "A. Author"}
    for parts in [*combinations(PARTS, 1), ("loss", "command"), PARTS]:
        expected = {}
        for file in (path for path in TEMPLATE.rglob("*") if path.is_file()):
            name = jinja.from_string(str(file.relative_to(TEMPLATE))).render(values, parts=parts)
            if not name.endswith("/.jinja"):
                text = file.read_text()
                shown = jinja.from_string(text).render(values, parts=parts) if name.endswith(".jinja") else text
                expected[name.removesuffix(".jinja")] = shown
        assert dict(render_all(values, parts)) == expected


def test_copier_gives_the_same_files(tmp_path):
    copier = pytest.importorskip("copier")
    write_plugin(tmp_path, "acme-rl", ["env", "command"])
    data = {"name": "acme-rl", "prefix": "acme", "parts": ["env", "command"]}
    copier.run_copy(str(TEMPLATE.parent), tmp_path / "copied", data=data, defaults=True, quiet=True)
    assert texts(tmp_path / "copied") == texts(tmp_path / "acme-rl")


@pytest.mark.parametrize("part", PARTS)
def test_one_part_alone_is_a_plugin_that_is_loaded(part, tmp_path):
    folder = write_plugin(tmp_path, "acme-rl", [part])
    code = (
        "import json; from importlib.metadata import EntryPoint; from rl.core.registry import Registry\n"
        "registry = Registry([EntryPoint('acme', 'acme_rl.plugin', 'rl.plugins')])\n"
        "print(json.dumps(registry.plugins[0].as_dict()), sorted(registry.commands()))"
    )
    path = os.pathsep.join([str(folder / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=True
    )
    record, end = json.JSONDecoder().raw_decode(done.stdout)
    assert record["state"] == "loaded", record["reason"]
    assert len(record["components"]) == (part != "command")
    assert done.stdout[end:].split() == (["['acme']"] if part == "command" else ["[]"])


def test_the_ranges_accept_our_present_versions():
    project = tomllib.loads((ROOT / "template" / NAME / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    for need in map(Requirement, chain(project["dependencies"], *extras)):
        if need.name.startswith("rl-"):
            short = need.name.removeprefix("rl-")
            about = (ROOT / "packages" / need.name / "src" / "rl" / short / "__about__.py").read_text()
            assert about.partition('__version__ = "')[2].partition('"')[0] in need.specifier, need


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["Acme"], "'Acme' cannot be the name of a distribution", id="capital"),
        pytest.param(["3d"], "'3d' cannot be the name", id="digit"),
        pytest.param(["class"], "'class' cannot be the name", id="keyword"),
        pytest.param(["../acme"], "'../acme' cannot be the name", id="path"),
        pytest.param(["rl-core"], "'rl-core' is the name of something else", id="ours"),
        pytest.param(["json"], "'json' is the name of something else", id="standard library"),
        pytest.param(["acme-rl", "--with", "env,agent"], "there is no part 'agent'; parts: env,", id="part"),
        pytest.param(["acme-rl", "--with", ""], "there is no part ''", id="no part"),
        pytest.param(["acme-rl", "--prefix", "A B"], "the prefix 'A B' is no lower case word", id="prefix"),
        pytest.param(["acme-rl", "--prefix", "list"], "`rl list` is a command of rl-core", id="command"),
        pytest.param(["acme-rl", "--author", 'A "B" C'], "cannot have quotes", id="author"),
        pytest.param(["there"], "there exists: choose another name", id="exists"),
        pytest.param(["acme-rl", "--wiht", "env"], "did you mean --with?", id="option"),
    ],
)
def test_what_cannot_be_a_plugin_is_rejected_before_anything_is_written(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert main(["new", "plugin", *words]) in (1, 2)
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_errors_of_the_function_are_typed(tmp_path):
    with pytest.raises(ArgumentError):
        write_plugin(tmp_path, "acme", ["agent"])
    write_plugin(tmp_path, "acme", ["env"])
    with pytest.raises(RLError, match="exists"):
        write_plugin(tmp_path, "acme", ["env"])


@pytest.fixture(scope="module")
def dist(wheels: Path) -> Path:
    """Our wheels and that of the example, which has all parts."""
    build_wheel(ROOT / "template" / NAME, wheels)
    return wheels


def own_tests(env: FreshEnv, where: Path) -> subprocess.CompletedProcess[str]:
    tests = shutil.copytree(ROOT / "template" / NAME / "tests", where / "tests")
    return env.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(where), str(tests), cwd=where)


@pytest.mark.slow
def test_with_rl_core_alone_its_tests_pass_and_rl_new_plugin_works(dist, tmp_path):
    env = fresh_env(tmp_path / "env", (*CORE_NEEDS, "pytest"))
    env.install(dist, NAME, "rl-testing")
    done = own_tests(env, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " skipped" in done.stdout  # the recipe needs rl-trainers
    assert env.rl("new", "plugin", "acme-rl", "--out", str(tmp_path)).returncode == 0
    assert texts(tmp_path / "acme-rl") == texts(write_plugin(tmp_path / "here", "acme-rl", ["env"]))
    assert "pip install rl-trainers" in env.rl("new", "recipe", "mine.py").stderr
    assert "pip install rl-trainers" in env.script(
        "from rl.core import load, MissingExtraError\n"
        "try: load('recipe', 'example-reinforce')\n"
        "except MissingExtraError as error: print(error)"
    )


@pytest.mark.slow
def test_with_all_packages_its_tests_pass_and_it_trains_by_name(dist, tmp_path):
    env = fresh_env(tmp_path / "env", TRAINER_NEEDS)
    env.install(dist, NAME, "rl-testing", "rl-trainers", "rl-native")
    done = own_tests(env, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " skipped" not in done.stdout
    few = ["--display", "none", "--eval-episodes", "1", "--final-eval-episodes", "1"]
    few += [
        "--env",
        "example/chain",
        "--loggers",
        "csv,example/lines",
        "--transform",
        "example/scale-reward:{factor: 2}",
    ]
    on_policy = ["--total-frames", "128", "--frames-per-batch", "64", "--num-envs", "2"]
    off_policy = ["--total-frames", "128", "--learning-starts", "32", "--sampler", "example/stratified"]
    for recipe, words in (("example-reinforce", on_policy), ("dqn", off_policy)):
        out = tmp_path / recipe
        done = env.rl("train", recipe, *few, *words, "--out", str(out))
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads((out / "summary.json").read_text())["frames"] == 128
        assert (out / "metrics.jsonl").read_text()
    assert "sampler example/stratified" in env.rl("example").stdout
    made = "from rl.core import make; print(type(make('storage', 'example/rows', max_size=3)).__name__)"
    assert env.script(made) == "RowStorage\n"


if __name__ == "__main__":
    shutil.rmtree(ROOT / "template" / NAME)
    print(write_plugin(ROOT / "template", **ANSWERS))
