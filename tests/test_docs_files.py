"""The documentation names source files; they exist."""

from __future__ import annotations

import re

import pytest
from fresh_env import ROOT

PACKAGES = {path.name.removeprefix("rl-"): path for path in (ROOT / "packages").iterdir() if path.is_dir()}
PAGES = {
    "debugging.md": None,
    "internals/collector.md": "collectors",
    "internals/envs.md": "envs",
    "internals/losses.md": "objectives",
    "internals/plugins.md": "core",
    "internals/replay.md": "replay",
    "internals/trainer.md": "trainers",
}


def source(name: str, home: str | None) -> bool:
    """Whether a file named as the pages name it is there: ``core/_done.py``, ``rl/core/mdp.py``, ``_flags.py``."""
    parts = name.removeprefix("rl/").split("/")
    package = parts.pop(0) if len(parts) > 1 and parts[0] in PACKAGES else home
    return package is not None and (PACKAGES[package] / "src" / "rl" / package).joinpath(*parts).is_file()


@pytest.mark.parametrize(("page", "home"), PAGES.items(), ids=PAGES)
def test_source_files_that_a_page_names_exist(page, home):
    names = set(re.findall(r"[\w./]*\w\.py\b", (ROOT / "docs" / page).read_text())) - {"rl.py"}  # a user's file
    assert names
    assert [name for name in sorted(names) if not source(name, home)] == []


def test_a_missing_file_would_be_found():
    assert source("_flags.py", "envs")
    assert not source("_flags.py", "core")
    assert not source("core/_flags.py", None)
