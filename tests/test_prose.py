"""Sources, docs and messages are written in the terms of the field: no file has a word of `prose_words.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fresh_env import ROOT

LIST = tomllib.loads((ROOT / "tests" / "prose_words.toml").read_text())
WORDS: dict[str, str] = LIST["words"]
LEFT: dict[str, int] = LIST["left"]
SUFFIXES = {".c", ".cu", ".cuh", ".h", ".md", ".py"}
GENERATED = {"_build", "_lib", "api", "__pycache__"}
GAP = r"[\s_]+(?:[#*>]+\s*|//+\s*)?"  # a space, an underscore of a name, or a line break inside a comment
PATTERN = re.compile(
    "|".join(rf"(?<![a-z])({GAP.join(word.split())})(?![a-z])" for word in sorted(WORDS, key=len, reverse=True)),
    re.IGNORECASE,
)
PARTS = [
    "docs",
    "examples",
    "template",
    "tests",
    "tools",
    *sorted(f"packages/{p.name}" for p in ROOT.glob("packages/*")),
]


def found(text: str) -> Iterator[tuple[int, str]]:
    """Each avoided word with its line."""
    for match in PATTERN.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, re.sub(GAP, " ", match[0]).lower()


def complaints(paths: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line}: {word!r}, write: {WORDS[word]}"
        for path in paths
        for line, word in found(path.read_text())
    ]


@pytest.mark.parametrize("part", PARTS)
def test_no_file_has_an_avoided_word(part):
    paths = [path for path in sorted((ROOT / part).rglob("*")) if path.suffix in SUFFIXES]
    paths = [path for path in paths if not GENERATED & set(path.relative_to(ROOT).parts)]
    assert paths
    wrong = complaints(paths)
    limit = LEFT.get(part, 0)
    assert len(wrong) <= limit, "\n".join(wrong)
    assert len(wrong) == limit, f"{part}: set its number under [left] in prose_words.toml to {len(wrong)}"


def test_no_file_of_the_root_has_an_avoided_word():
    assert complaints([ROOT / "x", ROOT / "hatch.toml", *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("*.py"))]) == []


def test_words_are_found_in_names_and_over_line_breaks():
    avoided = "is " + "asked"
    text = f"def test_who_{avoided.replace(' ', '_')}():\n    # it is\n    # {avoided.split()[1]}\n    this\n"
    assert list(found(text)) == [(1, avoided), (2, avoided)]
    assert not list(found(avoided.replace(" ", "") + " thi" + avoided))
