"""`./x release` on a small repository; workflows and wheel configuration by what they say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from fresh_env import ROOT

pytest.importorskip("griffe")
TOOLS = ROOT / "tools"


def git(root: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


def release(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOLS / "release.py"), "--root", str(root), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def root(tmp_path) -> Path:
    """A repository with rl-core and two dependants."""
    root = tmp_path / "repository"
    for name in ("rl-core", "rl-testing", "rl-replay"):
        ignored = shutil.ignore_patterns("__pycache__", "tests", "benchmarks")
        shutil.copytree(ROOT / "packages" / name, root / "packages" / name, ignore=ignored)
    (root / ".gitignore").write_text("dist/\n__pycache__/\n")
    git(root, "init", "-q")
    git(root, "config", "user.name", "a")
    git(root, "config", "user.email", "a@b")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "Begin")
    return root


def text_of(root: Path, name: str, file: str) -> str:
    return (root / "packages" / name / file).read_text()


def test_a_minor_release_raises_version_and_ranges_builds_and_tags(root):
    fragments = root / "packages" / "rl-core" / "changes"
    fragments.mkdir(exist_ok=True)
    (fragments / "+names.changed.md").write_text("Names have a new rule.\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "Add a rule")
    before = release(root, "rl-core", "--bump", "minor", "--dry-run")
    assert before.stdout.startswith("rl-core 0.4.0 (was 0.3.0)\n")
    assert git(root, "status", "--porcelain") == ""
    done = release(root, "rl-core", "--bump", "minor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert git(root, "tag").split() == ["rl-core-v0.4.0"]
    assert git(root, "log", "-1", "--format=%s") == "Release rl-core 0.4.0\n"
    assert git(root, "status", "--porcelain") == ""
    assert '__version__ = "0.4.0"' in text_of(root, "rl-core", "src/rl/core/__about__.py")
    assert text_of(root, "rl-core", "api.txt").startswith("# rl-core 0.4.0\n")
    assert "## 0.4.0\n\n### Changed\n\n- Names have a new rule.\n" in text_of(root, "rl-core", "CHANGELOG.md")
    for name in ("rl-testing", "rl-replay"):
        assert '"rl-core>=0.4,<0.5"' in text_of(root, name, "pyproject.toml")
    template = text_of(root, "rl-core", "src/rl/core/_plugin_template/files/pyproject.toml.jinja")
    assert '"rl-core>=0.4,<0.5"' in template
    built = sorted(path.name for path in (root / "dist").iterdir())
    assert built == ["rl_core-0.4.0-py3-none-any.whl", "rl_core-0.4.0.tar.gz"]
    again = release(root, "rl-core")
    assert (again.returncode, "rl-core 0.4.0 was released" in again.stderr) == (2, True)


def test_a_patch_release_leaves_the_ranges(root):
    done = release(root, "rl-replay", "--bump", "patch", "--dry-run")
    assert done.stdout == "rl-replay 0.4.1 (was 0.4.0)\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["rl-reply"], "there is no package rl-reply; packages: rl-core, rl-replay, rl-testing", id="name"),
        pytest.param(["rl-core", "--bump", "huge"], "invalid choice: 'huge'", id="part"),
    ],
)
def test_what_cannot_be_released_is_one_line(words, message, root):
    done = release(root, *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert git(root, "status", "--porcelain") == ""


def test_changes_that_are_not_committed_are_not_released(root):
    (root / "packages" / "rl-core" / "README.md").write_text("other\n")
    done = release(root, "rl-core")
    assert (done.returncode, "not committed" in done.stderr) == (2, True)


def test_a_breaking_change_needs_another_series(root):
    file = root / "packages" / "rl-replay" / "src" / "rl" / "replay" / "__init__.py"
    file.write_text(file.read_text().replace('    "RandomSampler",\n', "", 1))
    git(root, "commit", "-qam", "Remove a name")
    done = release(root, "rl-replay", "--bump", "patch")
    assert done.returncode == 1, done.stdout
    assert "use --bump minor or major" in done.stderr
    assert git(root, "status", "--porcelain") == ""
    assert git(root, "tag") == ""


def test_ranges_with_extras_and_markers_are_kept():
    sys.path.insert(0, str(TOOLS))
    import release as tool

    needs = '["rl-envs[gym]{0}", "rl-envs>=0.4,<0.5", "rl-envs{0}; os_name == \'nt\'", "rl-envs-more>=0.3,<0.4"]'
    old, new = needs.format(">=0.3,<0.4"), needs.format(">=0.4,<0.5")
    assert tool.widened(old, "rl-envs", "0.4.2") == new


def workflow(name: str) -> dict:
    loaded = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    assert "on" in loaded or True in loaded  # YAML 1.1 reads `on` as true
    assert loaded["permissions"] == {"contents": "read"}, "a job asks for more where it needs it"
    return loaded


def test_tests_run_on_every_supported_python_and_system():
    matrix = workflow("test")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert {system.partition("-")[0] for system in matrix["os"]} == {"ubuntu", "macos", "windows"}
    project = tomllib.loads((ROOT / "packages" / "rl-core" / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={matrix['python'][0]}"


def test_a_release_publishes_with_a_token_of_the_workflow_alone():
    jobs = workflow("release")["jobs"]
    publish = jobs["publish"]
    assert publish["permissions"]["id-token"] == "write"
    steps = [step.get("uses", "") for step in publish["steps"]]
    assert any(step.startswith("pypa/gh-action-pypi-publish") for step in steps)
    assert any(step.startswith("actions/attest-build-provenance") for step in steps)
    assert any(step.startswith("actions/attest-sbom") or "sbom" in step for step in steps)
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert "secrets." not in text


def test_commands_of_the_workflows_exist():
    text = "".join(path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    scripts = tomllib.loads((ROOT / "hatch.toml").read_text())["envs"]
    known = {name for env in scripts.values() for name in env.get("scripts", {})}
    for command in re.findall(r"run: (?:\./|python )x (\S+)", text):
        name = command.rpartition(":")[2]
        assert name in known | {"hatch"}, command
    for file in re.findall(r"tools/\w+\.py", text):
        assert (ROOT / file).is_file()


def test_wheels_of_rl_native_are_built_for_four_platforms():
    """cibuildwheel is configuration that only a release runs; this holds what it is told."""
    project = tomllib.loads((ROOT / "packages" / "rl-native" / "pyproject.toml").read_text())
    options = project["tool"]["cibuildwheel"]
    assert options["build"] == "cp311-*", "one wheel serves every Python: it is tagged py3-none"
    assert options["environment"]["RL_NATIVE"] == "require", "a wheel without a library is no release"
    assert "-m rl.core doctor" in options["test-command"]
    assert options["linux"]["archs"] == ["x86_64", "aarch64"]
    assert options["macos"]["archs"] == ["arm64"]
    assert options["windows"]["archs"] == ["AMD64"]
    matrix = workflow("release")["jobs"]["native"]["strategy"]["matrix"]["os"]
    assert [one.partition("-")[0] for one in matrix] == ["ubuntu", "ubuntu", "macos", "windows"]
    assert any(one.endswith("-arm") for one in matrix)
