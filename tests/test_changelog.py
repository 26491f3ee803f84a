"""The changelogs: well-formed fragments, one where sources changed, and a section for the present version."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys

import pytest
from fresh_env import ROOT

PACKAGES = sorted(path.parent for path in (ROOT / "packages").glob("*/pyproject.toml"))
BY_NAME = pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)


def fragments(package):
    return sorted((package / "changes").glob("*"))


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no history: {done.stderr}")
    return done.stdout.strip()


@BY_NAME
def test_fragments_are_well_formed(package):
    for path in fragments(package):
        assert re.fullmatch(r"(\+[a-z0-9-]+|\d+)\.(changed|performance)\.md", path.name), (
            f"{path}: name it +SLUG.changed.md, +SLUG.performance.md, or begin with the number of an issue"
        )
        text = path.read_text(encoding="utf-8")
        assert text.endswith(".\n"), f"{path}: write one sentence or more, and a line break"
        assert "\n\n" not in text, f"{path}: write one paragraph"
        assert not text.startswith(("-", "*", "#", " ")), f"{path}: begin with the text"


@BY_NAME
def test_the_changelog_starts_with_the_present_version_or_that_is_in_fragments(package):
    version = importlib.import_module(f"rl.{package.name[3:].replace('-', '_')}.__about__").__version__
    first = re.search(r"^## (\S+)$", (package / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert (first is not None and first[1] == version) is not bool(fragments(package)), (
        f"{package.name} {version}: raise the version with the first fragment after a release (`hatch version patch`)"
    )


@BY_NAME
def test_a_package_that_changed_since_its_release_says_so(package):
    version = next((package / "src").glob("rl/*/__about__.py"))  # raised by the first change after a release
    release = git("log", "-1", "--format=%H", "--", str(version))
    changed = git("diff", "--name-only", release, "--", str(package / "src"))
    written = git("diff", "--name-only", release, "--", str(package / "CHANGELOG.md"))
    assert not changed or written or fragments(package), (
        f"{package.name}: write packages/{package.name}/changes/+SLUG.changed.md about the change of {changed}"
    )


def test_a_release_moves_fragments_into_the_changelog(tmp_path):
    pytest.importorskip("towncrier")
    package = tmp_path / "rl-replay"
    (package / "changes").mkdir(parents=True)
    before = (ROOT / "packages" / "rl-replay" / "CHANGELOG.md").read_text(encoding="utf-8")
    (package / "CHANGELOG.md").write_text(before, encoding="utf-8")
    (package / "changes" / "+samplers.changed.md").write_text("Samplers\nsample.\n")
    (package / "changes" / "12.performance.md").write_text("Samples are faster.\n")
    shutil.copy(ROOT / "towncrier.toml", tmp_path)
    command = [sys.executable, "-m", "towncrier", "build", "--yes", "--config", "towncrier.toml"]
    subprocess.run([*command, "--dir", "rl-replay", "--version", "9.9.9"], cwd=tmp_path, check=True)
    head, _, tail = before.partition("\n## ")
    section = "\n## 9.9.9\n\n### Changed\n\n- Samplers\n  sample.\n\n### Performance\n\n- Samples are faster. (#12)\n\n"
    assert (package / "CHANGELOG.md").read_text(encoding="utf-8") == f"{head}{section}\n## {tail}"
    assert fragments(package) == []
