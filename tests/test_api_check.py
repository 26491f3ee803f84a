"""A breaking change without a new version series is found, shown on a doctored copy of the sources."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_env import ROOT


def check(root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "api_check.py"), "--root", str(root), *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> Path:
    """A checkout that holds rl-core and rl-envs, released as they are."""
    root = tmp_path_factory.mktemp("released")
    for name in ("rl-core", "rl-envs"):
        ignored = shutil.ignore_patterns("__pycache__", "tests", "benchmarks")
        shutil.copytree(ROOT / "packages" / name, root / "packages" / name, ignore=ignored)
        (root / "packages" / name / "api.json").unlink(missing_ok=True)
    assert check(root, "--release", "all").returncode == 0
    return root


@pytest.fixture
def copy(released: Path, tmp_path: Path) -> Path:
    """The sources of rl-core in a copy of it."""
    shutil.copytree(released / "packages", tmp_path / "packages")
    return tmp_path / "packages" / "rl-core" / "src" / "rl" / "core"


PROJECT = "../../../pyproject.toml"
ENVS = "../../../../rl-envs/src/rl/plugins/envs.py"


def doctor(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_an_unchanged_copy_passes(copy):
    done = check(copy.parents[4])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(" 0 breaking change(s)") == 2


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        pytest.param(
            "contract/_contract.py", "def rename(self, names", "def rename(self, more, names", "more", id="argument"
        ),
        pytest.param("contract/_contract.py", "def refuse(", "def reject(", "refuse", id="method"),
        pytest.param("arguments/__init__.py", "same_shape", "one_shape", "same_shape", id="function"),
        pytest.param("__init__.py", '    "explain",\n', "", "explain", id="name-of-the-root"),
        pytest.param(
            "interfaces/_env.py", "    def close(", "    def render(self): ...\n\n    def close(", "render", id="member"
        ),
        pytest.param("interfaces/_env.py", "seed: int) -> int", "seed: int) -> str", "Env.set_seed", id="return-type"),
        pytest.param(
            "interfaces/_env.py", "self, seed: int", "self, seed: int, *, deep: bool = False", "deep", id="option"
        ),
        pytest.param("hookspecs.py", "RowGather | None:", "list[RowGather]:", "hook rl_row_gather", id="hook-answer"),
        pytest.param(
            "hookspecs.py", "def rl_row_gather(tensors", "def rl_row_gather(rows", "tensors", id="hook-argument"
        ),
        pytest.param("component.py", '    "writer": (1, 1),\n', "", "kind writer was removed", id="kind"),
        pytest.param("component.py", '"env": (1, 1)', '"env": (2, 2)', "env/1 to env/1 became env/2", id="contract"),
        pytest.param(PROJECT, "torch>=2.11", "torch>=2.13", "torch>=2.11 became torch>=2.13", id="torch"),
        pytest.param(PROJECT, "pluggy>=1.5,<2", "pluggy>=1.5,<1.9", "pluggy<2,>=1.5 became", id="upper-bound"),
        pytest.param(PROJECT, ">=3.11", ">=3.12", "python>=3.11 became python>=3.12", id="python"),
        pytest.param(ENVS, '"pendulum"', '"swing-up"', "component env pendulum was removed", id="component"),
    ],
)
def test_a_break_is_named_and_fails(copy, file, old, new, named):
    doctor(copy / file, old, new)
    done = check(copy.parents[4])
    assert done.returncode == 1, done.stdout
    assert named in done.stdout
    assert "needs a new version series" in done.stdout


def test_a_break_with_a_new_series_passes(copy):
    doctor(copy / "contract/_contract.py", "def refuse(", "def reject(")
    doctor(copy / "__about__.py", '"0.2', '"0.3')
    done = check(copy.parents[4])
    assert done.returncode == 0, done.stdout
    assert "1 breaking change(s)" in done.stdout


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        pytest.param(
            "arguments/_checks.py", "def same", "def another() -> None:\n    ...\n\n\ndef same", id="function"
        ),
        pytest.param("hookspecs.py", "(tensors: ", "(size: int, tensors: ", id="argument-of-a-hook"),
        pytest.param("component.py", '"env": (1, 1)', '"env": (1, 2)', id="newer-contract"),
        pytest.param(PROJECT, "pluggy>=1.5,<2", "pluggy>=1.4", id="wider-bound"),
        pytest.param(
            "../../../../rl-envs/pyproject.toml", '"rl-core>=0.2', '"rl-core>=0.2.9', id="newer-core-of-a-series"
        ),
        pytest.param(ENVS, "    yield", '    yield Component("env", "n", "m:A")\n    yield', id="component"),
    ],
)
def test_an_addition_passes(copy, file, old, new):
    text = (copy / file).read_text()
    (copy / file).write_text(text.replace(old, new, 1))
    assert new in (copy / file).read_text()
    done = check(copy.parents[4])
    assert done.returncode == 0, done.stdout
