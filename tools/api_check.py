"""Compare the public API of each package with that of its last release, kept in packages/NAME/api.txt.

Public API is what `api_text` lists: names, signatures, bases, members of protocols, hooks, values of constants, outputs
of losses, contract versions, components, commands, options, environment variables, extras, scripts, and bounds of
dependencies. A breaking change is allowed only together with a new compatibility series: 0.1 -> 0.2, or 1.x -> 2.0. A
text older than the last release, which is the newest version of CHANGELOG.md below the present one, is an error.
`--release NAME` (or `all`) writes the text for the present version, and moves packages/NAME/changes/ into its
CHANGELOG.md. `--root DIR` looks at another checkout.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import griffe
from api_text import present_api
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]

Facts = dict[tuple[str, str], tuple[str, str]]
"""What is known of an object and its members: by member and kind of fact, the word and the text of its line."""

SAME_KIND = {"protocol": "class", "settings": "class", "property": "attribute"}
LINE = re.compile(r"(?P<path>rl[\w.]*(?::\w+)?)(?P<member>\S*) (?P<word>\w+) ?(?P<text>.*)")


def objects(lines: Iterable[str]) -> dict[str, Facts]:
    """Return the objects that the lines describe, by import path; several paths of one object have the same facts."""
    found: dict[str, Facts] = {}
    same: dict[str, str] = {}
    for line in sorted(lines):
        match = LINE.fullmatch(line) if line.startswith("rl.") else None
        if match is None:
            continue
        path, member, word, text = match.groups()
        if word == "is":
            same[path] = text
        else:
            found.setdefault(path, {})[member, SAME_KIND.get(word, word)] = (word, text)
    return found | {path: found.get(target, {}) for path, target in same.items()}


def broken(old: set[str], new: set[str], inherited: set[str]) -> Iterator[str]:
    """Each promise of the `old` lines that the `new` ones do not keep; `inherited` ones are kept without a line."""
    before, after = objects(old), objects(new | inherited)
    own = objects(new)
    seen: set[tuple[int, int]] = set()
    for path, facts in before.items():
        if path not in after:
            yield f"{path} left __all__" if ":" in path else f"{path} was removed"
        elif (id(facts), id(after[path])) not in seen:  # not at another import path
            seen.add((id(facts), id(after[path])))
            yield from changed(path, facts, after[path], own[path])
    yield from broken_contracts(contracts(old), contracts(new))
    names = (line for line in sorted(old) if not line.startswith(("rl.", "contract ", "dependency ")))
    yield from (f"{name} was removed" for name in names if name not in new)
    yield from narrower_bounds(old, new)


def changed(path: str, before: Facts, after: Facts, own: Facts) -> Iterator[str]:
    """Yield what broke in an object and its members."""
    of_class, _ = before.get(("", "class"), ("", ""))
    for (member, kind), (word, text) in before.items():
        new_word, new_text = after.get((member, kind), ("", ""))
        if not new_word and kind not in KEPT:
            yield f"{path}{member}: the {word} was removed"
        elif of_class == "protocol" and member:
            if (word, text) != (new_word, new_text):
                yield f"{path}{member}: {word}{text} -> {new_word}{new_text}"
        elif kind in KEPT:
            if not KEPT[kind](text, new_text):
                yield f"{path}{member}: {'bases' if kind == 'class' else kind} {text} became {new_text or 'none'}"
        elif text != new_text:
            yield from broken_member(f"{path}{member}", (word, text), (new_word, new_text))
    known = {member for member, _ in before}
    added = [(member, *own[member, kind]) for member, kind in own if member not in known]
    yield from (f"{path}: {text}" for text in broken_additions(of_class, added))


def broken_additions(of_class: str, added: list[tuple[str, str, str]]) -> Iterator[str]:
    """Yield new members of a protocol, and new settings without a default."""
    for member, word, text in added:
        if of_class == "protocol":
            yield f"new member {member[1:]}, which implementations lack"
        elif of_class == "settings" and word == "attribute" and not default_of(text):
            yield f"new field {member[1:]} without a default"


def broken_member(path: str, before: tuple[str, str], after: tuple[str, str]) -> Iterator[str]:
    """Yield what broke in a function, a property, or a field of settings."""
    (word, text), (new_word, new_text) = before, after
    if word not in ("attribute", "property"):
        yield from broken_signature(path, text, new_text)
    elif word == new_word == "property" and not returns_are_kept(text, new_text):
        yield f"{path}: returns {text} became {new_text or 'none'}"
    elif word == new_word == "attribute" and default_of(text) not in ("", default_of(new_text)):
        yield f"{path}: default {default_of(text)} became {default_of(new_text) or 'none'}"


def default_of(text: str) -> str:
    """Return the default of a field; empty without one."""
    return text.partition(" = ")[2]


def broken_signature(path: str, before: str, after: str) -> Iterator[str]:
    """Yield what calls of the old signature the new one refuses, and types that calls did not return."""
    code = [f"def function{text}: ..." for text in (before, after)]
    old, new = (griffe.visit("api", filepath=Path("api.py"), code=text) for text in code)
    for change in griffe.find_breaking_changes(old, new):
        was, now = change.old_value, change.new_value
        if isinstance(change, griffe.ParameterChangedDefaultBreakage):
            yield f"{path}({was.name}): default {was.default} became {now.default}"
        elif not isinstance(change, griffe.ReturnChangedTypeBreakage) and not is_argument_of_a_hook(path, change):
            yield f"{path}({(now or was).name}): {change.kind.value}: {before} became {after}"
    old_type, new_type = map(returned, code)
    if not returns_are_kept(old_type, new_type):
        yield f"{path}: returns {old_type} became {new_type or 'none'}"


def is_argument_of_a_hook(path: str, change: griffe.Breakage) -> bool:
    """Whether an argument of a hook is new or at another position: an implementation gets those that it names."""
    added = isinstance(change, griffe.ParameterAddedRequiredBreakage | griffe.ParameterMovedBreakage)
    return added and path.startswith("rl.core.hookspecs:rl_")


def returned(definition: str) -> str:
    """Return the annotated type of what a function returns; empty without one."""
    found = ast.parse(definition).body[0]
    assert isinstance(found, ast.FunctionDef)
    return "" if found.returns is None else ast.unparse(found.returns)


def returns_are_kept(before: str, after: str) -> bool:
    """Whether what is returned is one of the types that it was."""
    return not before or (bool(after) and alternatives(after) <= alternatives(before))


def alternatives(text: str) -> set[str]:
    """Return the alternatives of a type, the items of a dict, or the text itself."""
    tree = ast.parse(text, mode="eval").body
    if isinstance(tree, ast.Dict):
        items = zip(tree.keys, tree.values, strict=True)
        return {f"{'**' if key is None else ast.unparse(key)}: {ast.unparse(value)}" for key, value in items}
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        return alternatives(ast.unparse(tree.left)) | alternatives(ast.unparse(tree.right))
    return {ast.unparse(tree)}


def listed(before: str, after: str) -> bool:
    """Whether all names of a list are in the other."""
    return set(re.findall(r"\w+", before)) <= set(re.findall(r"\w+", after))


def values_are_kept(before: str, after: str) -> bool:
    """Whether a constant is the same, or a dict with the same items and others."""
    return before == after or ("{" in before and bool(after) and alternatives(before) <= alternatives(after))


KEPT = {
    "class": listed,
    "outputs": listed,
    "values": values_are_kept,
    "hooks": str.__eq__,
}
"""For a kind of fact whether the new text keeps what the old one promised."""


def contracts(lines: Iterable[str]) -> dict[str, list[int]]:
    """Return the oldest and the present version of the contract of each kind of component."""
    texts = (line.removeprefix("contract ") for line in lines if line.startswith("contract "))
    return {text.partition("/")[0]: [int(number) for number in re.findall(r"/(\d+)", text)] for text in texts}


def broken_contracts(old: dict[str, list[int]], new: dict[str, list[int]]) -> Iterator[str]:
    """Versions that components declare and that are not served any more."""
    for kind, (oldest, current) in old.items():
        served = new.get(kind)
        if served is None:
            yield f"CONTRACTS: kind {kind} was removed"
        elif served[0] > oldest or served[1] < current:
            yield f"CONTRACTS: {kind}/{oldest} to {kind}/{current} became {kind}/{served[0]} to {kind}/{served[1]}"


def bounds(lines: Iterable[str]) -> dict[str, SpecifierSet]:
    """Return the range of each dependency; of those of an extra, as ``extra: name``."""
    found = {}
    for line in lines:
        if line.startswith("dependency "):
            extra, colon, need = f" {line.removeprefix('dependency ')}".rpartition(": ")
            requirement = Requirement(need)
            ranged, requirement.specifier = requirement.specifier, SpecifierSet()
            found[f"{extra}{colon}{requirement}".strip()] = ranged
    return found


def narrower_bounds(old: set[str], new: set[str]) -> Iterator[str]:
    """Dependencies that are new, except those of a new extra, or refuse versions that they took before."""
    known = bounds(old)
    for name, after in bounds(new).items():
        before = known.get(name)
        extra, colon, need = name.rpartition(": ")
        if before is None and (not colon or f"extra {extra}" in old):
            yield f"dependency {name}{after} is new"
        elif before is not None and narrower(before, after, ours=need.startswith("rl-")):
            yield f"dependency {name}{before} became {name}{after}"


def narrower(before: SpecifierSet, after: SpecifierSet, *, ours: bool) -> bool:
    """Whether a range refuses versions that it took before.

    A lower bound of one of our own distributions may rise within a compatible series: an installer upgrades it, and
    nothing breaks there.
    """
    excluded, before_excluded = (
        {clause.version for clause in one if clause.operator == "!="} for one in (after, before)
    )
    if excluded - before_excluded:
        return True
    (low, high), (new_low, new_high) = ends(before), ends(after)
    if new_high is not None and (high is None or new_high < high):
        return True
    if new_low is None or (low is not None and new_low <= low):
        return False
    return not (ours and low is not None and series(str(new_low)) == series(str(low)))


def ends(ranged: SpecifierSet) -> tuple[Version | None, Version | None]:
    """Return the lower and the upper end of a range."""
    lower = [Version(one.version.removesuffix(".*")) for one in ranged if one.operator in (">=", ">", "==", "~=")]
    upper = [Version(one.version.removesuffix(".*")) for one in ranged if one.operator in ("<", "<=", "==")]
    return max(lower, default=None), min(upper, default=None)


def series(version: str) -> tuple[int, ...]:
    """Return the part of a version within which nothing may break."""
    major, minor, *_ = (*(int(part) for part in version.split(".")[:2]), 0)
    return (0, minor) if major == 0 else (major,)


def version_of(package: Path) -> str:
    """Return the version that a package's version file states."""
    project = tomllib.loads((package / "pyproject.toml").read_text())
    text = (package / project["tool"]["hatch"]["version"]["path"]).read_text()
    found = re.search(r'__version__ = "(.+?)"', text)
    if found is None:
        raise SystemExit(f"{package.name}: no __version__ in its version file")
    return found[1]


def last_release(package: Path, now: str) -> str | None:
    """Return the newest version in the changelog below the present one; None before the first release."""
    path = package / "CHANGELOG.md"
    found = re.findall(r"^## (\S+)$", path.read_text(), re.MULTILINE) if path.is_file() else []
    return max((version for version in found if Version(version) < Version(now)), key=Version, default=None)


def build_changelog(package: Path, version: str) -> None:
    """Write the section of a version from the fragments, and remove them."""
    if any((package / "changes").glob("*.md")):
        command = [sys.executable, "-m", "towncrier", "build", "--yes", "--version", version]
        subprocess.run([*command, "--config", ROOT / "towncrier.toml", "--dir", package], cwd=package, check=True)


def check(package: Path, *, release: bool) -> bool:
    """Print what broke since the last release; whether that is allowed."""
    path = package / "api.txt"
    now = version_of(package)
    lines, inherited = present_api(package)
    if release:
        path.write_text("\n".join([f"# {package.name} {now}", *sorted(lines)]) + "\n", encoding="utf-8")
        build_changelog(package, now)
    first, *stored = path.read_text(encoding="utf-8").splitlines() if path.is_file() else [""]
    old = first.rpartition(" ")[2]
    released = last_release(package, now)
    if released is not None and (not old or Version(old) < Version(released)):
        print(
            f"{package.name} {now}: api.txt is older than the last release {released},"
            f" {f'it is of {old}' if old else 'there is none'}. Check out that"
            f" release, run `./x api --release {package.name}` there, and keep its api.txt"
        )
        return False
    if not old:
        print(f"{package.name} {now}: no release yet")
        return True
    breaks = list(broken(set(stored), lines, inherited))
    allowed = not breaks or series(now) > series(old)
    verdict = "" if allowed else ": needs a new version series (`hatch version minor` before 1.0, else `major`)"
    print(f"{package.name} {old} -> {now}: {len(breaks)} breaking change(s){verdict}")
    for change in breaks:
        print("   ", change)
    return allowed


def main() -> int:
    """Check every package, after writing the requested texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default="", metavar="NAME", help="write text and changelog of NAME, or of all")
    parser.add_argument("--root", type=Path, default=ROOT)
    options = parser.parse_args()
    packages = sorted(path.parent for path in (options.root / "packages").glob("*/pyproject.toml"))
    verdicts = [check(package, release=options.release in (package.name, "all")) for package in packages]
    return 0 if all(verdicts) else 1  # after all of them, also the first that fails


if __name__ == "__main__":
    sys.exit(main())
