"""The matrix of tools/compatibility.py: by metadata, and with older wheels that run, fail or are excluded."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from fresh_env import ROOT, build_wheel
from packaging.requirements import Requirement
from packaging.version import Version

TOOL = ROOT / "tools" / "compatibility.py"
PACKAGES = sorted(path.parent for path in (ROOT / "packages").glob("*/pyproject.toml"))


def tool(newest: Path, released: Path, *words: str) -> tuple[int, dict[str, str]]:
    command = [sys.executable, str(TOOL), "--newest", str(newest), "--released", str(released), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    lines = [line for line in done.stdout.splitlines() if " newest others " in line]
    return done.returncode, {line.split()[0]: line.partition(" newest others ")[2].strip() for line in lines}


def older(name: str, version: str, into: Path, *changes: tuple[str, str, str]) -> None:
    """Build the wheel of a package as an older release of it could have been."""
    source = into / "sources" / name
    folder = ROOT / "packages" / name
    folder = folder if folder.exists() else ROOT / "template" / name
    shutil.copytree(folder, source, ignore=shutil.ignore_patterns("__pycache__", "tests", "_lib"))
    (about,) = source.rglob("__about__.py")
    about.write_text(f'"""Version."""\n\n__version__ = "{version}"\n')
    for file, old, new in changes:
        (path,) = source.rglob(file)
        assert old in path.read_text(), (file, old)
        path.write_text(path.read_text().replace(old, new))
    build_wheel(source, into)


def present(name: str) -> Version:
    (about,) = (ROOT / "packages" / name / "src" / "rl").rglob("__about__.py")
    return Version(about.read_text().partition('__version__ = "')[2].partition('"')[0])


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_ranges_accept_the_present_versions_also_those_of_extras(package):
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {}).values()
    for need in map(Requirement, [*project["dependencies"], *(need for extra in extras for need in extra)]):
        if need.name.startswith("rl-"):
            assert present(need.name) in need.specifier, f"{package.name} needs {need}"


def test_without_wheels_the_first_step_is_named(tmp_path):
    done = subprocess.run(
        [sys.executable, str(TOOL), "--newest", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "./x hatch build --all -t wheel" in done.stdout


@pytest.mark.slow
def test_a_release_runs_fails_or_is_excluded_with_the_newest_others(wheels, tmp_path):
    older("rl-objectives", "0.3.0a1", tmp_path)
    older(
        "rl-replay",
        "0.4.0a1",
        tmp_path,
        ("_priority_tree.py", "from rl.core.errors import", "from rl.core.gone import"),
    )
    older("rl-envs", "0.2.9", tmp_path, ("pyproject.toml", "rl-core>=0.3,<0.4", "rl-core>=0.2,<0.3"))
    older("rl-plugin-example", "0.0.9", tmp_path)
    status, found = tool(wheels, tmp_path, "--metadata")
    assert status == 0
    assert found["rl-replay"] == "accepts"
    status, found = tool(wheels, tmp_path)
    assert status == 1
    assert found["rl-objectives"] == "runs"
    assert found["rl-plugin-example"] == "runs"
    assert found["rl-replay"].startswith("FAILED")
    assert "rl.core.gone" in found["rl-replay"]
    assert found["rl-envs"] == "excluded  rl-core<0.3,>=0.2 rejects 0.3.0"
