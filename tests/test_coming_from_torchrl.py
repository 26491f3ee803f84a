"""The table of docs/coming-from-torchrl.md against the classes that handle arguments of TorchRL.

`python tests/test_coming_from_torchrl.py` prints the table.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from rl.core.arguments import Needless

# the texts of errors, looked through for names and pages that do not exist
from rl.torchrl._arguments_envs import ARGUMENTS as ENVS
from rl.torchrl._arguments_learning import ARGUMENTS as LEARNING
from rl.torchrl._names import _INSTEAD, RENAMED

PAGE = Path(__file__).parent.parent / "docs" / "coming-from-torchrl.md"
BEGIN, END = "<!-- arguments: begin -->", "<!-- arguments: end -->"
PACKAGES = ["rl.core", "rl.core.specs", "rl.testing", "rl.collectors", "rl.envs", "rl.modules", "rl.replay"]
PACKAGES += ["rl.replay.datasets", "rl.objectives", "rl.objectives.value", "rl.objectives.value.functional"]


@dataclass(frozen=True)
class Answering:
    """What a public class or function has and what it answers."""

    owner: str
    known: frozenset[str]
    table: Mapping[str, Needless]


def answering() -> Iterator[tuple[str, Answering]]:
    """Public classes, functions and methods that handle foreign arguments, by name."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            public = getattr(module, name)
            calls = [(name, constructors(public) if isinstance(public, type) else [public])]
            if isinstance(public, type):
                own = ((key, getattr(value, "__func__", value)) for key, value in vars(public).items())
                calls += [(f"{name}.{key}", [value]) for key, value in own if not key.startswith("_")]
            for called, chain in calls:
                if found := answers(chain):
                    yield called, found


def constructors(cls: type) -> list[Any]:
    """The constructor of a class, and those of its bases in turn."""
    return [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)]


def answers(chain: list[Any]) -> Answering | None:
    """What the first of several functions that answers says; those before it pass arguments on."""
    passed: set[str] = set()
    for call in chain:
        found = getattr(call, "answers", None)
        if hasattr(type(found), "keep"):  # an object may answer every name
            table = {name: why for name, why in found.table.items() if name not in passed}
            return Answering(found.name, found.known, table)
        if not inspect.isfunction(call):
            return None
        parameters = inspect.signature(call).parameters.values()
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            return None
        passed |= {one.name for one in parameters}
    return None


def table() -> str:
    """Rows of the page: argument, classes, accepted default, remedy."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for name, found in dict(answering()).items():
        for argument, (why, *values) in found.table.items():
            dropped = ", ".join("any value" if value is ... else f"`{value!r}`" for value in values) or "-"
            rows.setdefault((argument, dropped, why), []).append(name)
    lines = ["| argument | of | dropped if | else |", "|---|---|---|---|"]
    for (argument, dropped, why), names in sorted(rows.items()):
        owners = ", ".join(f"`{name}`" for name in sorted(names))
        lines.append(f"| `{argument}` | {owners} | {dropped} | {why} |")
    return "\n".join(lines)


def test_the_page_lists_every_argument_that_is_answered():
    listed = PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip()
    assert listed == table(), "paste what `python tests/test_coming_from_torchrl.py` prints"


def test_the_page_lists_the_names_that_are_other_names_here():
    listed = PAGE.read_text().partition("<!-- renamed: begin -->")[2].partition("<!-- renamed: end -->")[0].strip()
    rows = [f"| `{old}` | `{new}` |" for old, new in sorted(RENAMED.items())]
    assert listed.splitlines() == ["| there | here |", "|---|---|", *rows]


def test_every_table_is_that_of_something_public():
    assert {*ENVS, *LEARNING} <= {found.owner for _, found in answering()}


def test_no_argument_is_answered_that_the_signature_has():
    for name, found in answering():
        assert not found.known & {*found.table}, name


def test_every_sentence_says_that_it_is_needless_or_what_to_do():
    for name, found in answering():
        for sentence, *_ in found.table.values():
            assert sentence.startswith(("unused: ", "use ", "not available yet: ")), (name, sentence)
            assert inspect.cleandoc(sentence) == sentence.rstrip("."), (name, sentence)


def test_equal_names_are_where_the_page_says():
    rows = PAGE.read_text().partition("## Equal names")[2].partition("\n## ")[0]
    found = re.findall(r"^\| `(\w+)` \|.*\| `(rl\.[\w.]+)`:", rows, re.MULTILINE)
    assert len(found) == rows.count("\n|") - 2
    for name, package in found:
        assert resolve_name(f"{package}.{name}") is not None


def test_what_stands_in_for_missing_names_is_there():
    for remedy, names in _INSTEAD.items():
        for reference in re.findall(r"\brl(?:\.\w+)+", remedy):
            assert resolve_name(reference) is not None
        for page in re.findall(r"docs/[\w/-]+\.md", remedy):
            assert (PAGE.parents[1] / page).is_file()
        for name in names.split():
            holders = {
                package for package in [*PACKAGES, "rl.trainers"] if hasattr(importlib.import_module(package), name)
            }
            assert not holders or any(package in remedy for package in holders), (name, holders)


if __name__ == "__main__":
    print(table())
