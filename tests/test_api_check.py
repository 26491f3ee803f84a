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


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout that holds rl-core alone, released as it is."""
    package = tmp_path / "packages" / "rl-core"
    shutil.copytree(ROOT / "packages" / "rl-core", package, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    (package / "api.json").unlink(missing_ok=True)
    assert check(tmp_path, "--release", "rl-core").returncode == 0
    return package / "src" / "rl" / "core"


def doctor(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_an_unchanged_copy_passes(copy):
    done = check(copy.parents[4])
    assert done.returncode == 0, done.stdout
    assert "0 breaking change(s)" in done.stdout


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        pytest.param("contract.py", "def rename(self, names", "def rename(self, more, names", "more", id="argument"),
        pytest.param("contract.py", "def refuse(", "def reject(", "refuse", id="method"),
        pytest.param("checks.py", "same_shape", "one_shape", "same_shape", id="function"),
        pytest.param("__init__.py", '    "explain",\n', "", "explain", id="name-of-the-root"),
    ],
)
def test_a_break_is_named_and_fails(copy, file, old, new, named):
    doctor(copy / file, old, new)
    done = check(copy.parents[4])
    assert done.returncode == 1, done.stdout
    assert named in done.stdout
    assert "needs a new version series" in done.stdout


def test_a_break_with_a_new_series_passes(copy):
    doctor(copy / "contract.py", "def refuse(", "def reject(")
    doctor(copy / "__about__.py", '"0.1', '"0.2')
    done = check(copy.parents[4])
    assert done.returncode == 0, done.stdout
    assert "1 breaking change(s)" in done.stdout


def test_an_addition_passes(copy):
    doctor(copy / "checks.py", "def same_shape", "def another() -> None:\n    ...\n\n\ndef same_shape")
    assert check(copy.parents[4]).returncode == 0
