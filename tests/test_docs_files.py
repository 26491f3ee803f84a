"""Source files and commands that the documentation names exist; its code fits the page."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from fresh_env import ROOT

PACKAGES = {path.name.removeprefix("rl-"): path for path in (ROOT / "packages").iterdir() if path.is_dir()}
OTHERS = {"rl.py", "_base.py", "rl/__init__.py"}  # a user's file, a rule, and one that must not exist
PAGES = {
    "architecture.md": None,
    "debugging.md": None,
    "howto/troubleshooting-training.md": "trainers",
    "internals/collector.md": "collectors",
    "internals/envs.md": "envs",
    "internals/losses.md": "objectives",
    "internals/plugins.md": "core",
    "internals/replay.md": "replay",
    "internals/trainer.md": "trainers",
}


DOCS = [ROOT / "README.md", *(p for p in sorted((ROOT / "docs").rglob("*.md")) if not {"_build", "api"} & set(p.parts))]
BY_PAGE = pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
WIDTH = 88  # columns of a code block that the page shows without scrolling


def code_lines(path: Path) -> list[tuple[int, str]]:
    """The lines of the code blocks of a page, with their numbers."""
    inside, formula, found = False, False, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("```"):
            inside = not (inside or formula)
            formula = line == "```{math}"  # not shown as it is written
        elif inside and not formula:
            found.append((number, line))
    return found


def source(name: str, home: str | None) -> bool:
    """Whether a file named as in the pages exists: ``core/state.py``, or ``_rules.py`` in any folder of home."""
    parts = name.removeprefix("rl/").split("/")
    package = parts.pop(0) if len(parts) > 1 and parts[0] in PACKAGES else None
    if package is not None:
        return (PACKAGES[package] / "src" / "rl" / package / "/".join(parts)).exists()
    return home is not None and any((PACKAGES[home] / "src" / "rl" / home).rglob("/".join(parts)))


@pytest.mark.parametrize(("page", "home"), PAGES.items(), ids=PAGES)
def test_source_files_that_a_page_names_exist(page, home):
    names = set(re.findall(r"[\w./]*\w\.(?:py|h)\b", (ROOT / "docs" / page).read_text())) - OTHERS
    assert names
    assert [name for name in sorted(names) if not source(name, home)] == []


def test_a_missing_file_would_be_found():
    assert source("_rules.py", "envs")
    assert not source("_rules.py", "core")
    assert not source("core/_rules.py", None)
    assert not source("envs/_rules.py", None)  # it is in a folder


@BY_PAGE
def test_code_blocks_fit_the_page(path):
    assert [f"{path.name}:{number}" for number, line in code_lines(path) if len(line) > WIDTH] == []


@BY_PAGE
def test_commands_of_x_that_a_page_names_exist(path):
    environments = tomllib.loads((ROOT / "hatch.toml").read_text())["envs"]
    scripts = set(environments["default"]["scripts"]) | {"hatch", "rl"}
    scripts |= {f"{env}:{name}" for env, value in environments.items() for name in value.get("scripts", {})}
    named = set(re.findall(r"\./x ([a-z][\w:-]*)", path.read_text()))
    assert named <= scripts
