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


MADE = {"_build", "reference", "options", "curves"}  # by the build of the site
DOCS = [ROOT / "README.md", *(p for p in sorted((ROOT / "docs").rglob("*.md")) if not MADE & set(p.parts))]
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


def headings(path: Path) -> set[str]:
    """Anchors of the headings of a page, as GitHub and MyST build them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    names = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line) for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", name.lower().strip()).replace(" ", "-") for name in names}


def dead_links(path: Path) -> list[str]:
    """Relative links of a page to a file or heading that does not exist."""
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = []
    for link in re.findall(r"\]\(([^()\s]+)\)", text):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if "://" in link or link.startswith("mailto:") or MADE & set(target.parts):
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in headings(target)):
            found.append(link)
    return found


@pytest.mark.parametrize(
    "path",
    [*DOCS, ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("packages/*/README.md")), *sorted(ROOT.glob("examples/*.md"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_links_of_a_page_lead_to_files_and_headings(path):
    assert dead_links(path) == []


def test_a_dead_link_would_be_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One\n[a](#one) [b](#two) [c](none.md) [d](https://x.org/y)\n```\n[e](none.md)\n```\n")
    assert dead_links(page) == ["#two", "none.md"]
