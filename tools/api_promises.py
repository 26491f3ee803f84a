"""What a package promises besides its importable names: protocols, hooks, contract versions, component names, bounds.

`promises` reads them from the sources; `broken_promises` compares two of them, each difference as a sentence.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

Promises = dict[str, Any]

LIST_DECLARATION = """
import importlib, json, sys
sys.path[:0] = sys.argv[2:]
from rl.core.registry import Registry
registry = Registry()
module, _, attribute = sys.argv[1].partition(":")
plugin = importlib.import_module(module)
registry.register(getattr(plugin, attribute) if attribute else plugin, "checked")
names = [f"{c.kind} {c.name}" for c in registry.components()] + [f"command {name}" for name in registry.commands()]
print(json.dumps(names))
"""


def promises(package: Path, module: griffe.Module) -> Promises:
    """The promises of a package.

    Args:
        package: its folder.
        module: its API, loaded from the sources.
    """
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    found: Promises = {
        "protocols": {path: members(kind) for path, kind in protocols(module)},
        "bounds": bounds(project),
        "components": components(package, project),
    }
    if "hookspecs" in module.members:
        specs = module["hookspecs"].members.items()
        found["hooks"] = {name: str(spec.returns) for name, spec in specs if name.startswith("rl_")}
    if "components" in module.members:
        found["contracts"] = ast.literal_eval(str(module["component.CONTRACTS"].value))
    return found


def protocols(module: griffe.Object) -> Iterator[tuple[str, griffe.Class]]:
    """The protocols of the public modules of a package, by the path that their users import."""
    exported = set(map(str, module.exports or ()))
    for name, member in module.members.items():
        if name.startswith("_") or (member.is_alias and (name not in exported or module.path.count(".") < 2)):
            continue  # the package root repeats names of its modules
        found: Any = member
        if isinstance(member, griffe.Alias):
            if not member.target_path.startswith(f"{'.'.join(module.path.split('.')[:2])}."):
                continue  # of another package
            try:
                found = member.final_target
            except griffe.AliasResolutionError:  # our name for a class of another project
                continue
        if isinstance(found, griffe.Module):
            yield from protocols(found)
        elif isinstance(found, griffe.Class) and any(str(base).startswith("Protocol") for base in found.bases):
            yield f"{module.path}.{name}", found


def members(kind: griffe.Class) -> dict[str, str]:
    """The members of a protocol, each with its signature or type."""
    return {name: declared(member) for name, member in sorted(kind.members.items())}


def declared(member: Any) -> str:
    """`(self, x: int = 0) -> int` of a method, `int` of an attribute."""
    if not isinstance(member, griffe.Function):
        return str(member.annotation)
    return f"({', '.join(map(parameter, member.parameters))}) -> {member.returns}"


def parameter(one: griffe.Parameter) -> str:
    """A parameter with its kind, type and default."""
    star = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(one.kind, "")
    keyword = "*, " if one.kind is griffe.ParameterKind.keyword_only else ""
    kind = f": {one.annotation}" if one.annotation is not None else ""
    return f"{keyword}{star}{one.name}{kind}{f' = {one.default}' if one.default is not None and not star else ''}"


def bounds(project: dict[str, Any]) -> dict[str, str]:
    """The range of each dependency; of those of an extra as `extra: name`."""
    found = {"python": project["requires-python"]}
    extras = [("", project["dependencies"]), *project.get("optional-dependencies", {}).items()]
    for extra, lines in extras:
        for need in map(Requirement, lines):
            found[f"{extra}: {need.name}" if extra else need.name] = str(need.specifier)
    return found


def components(package: Path, project: dict[str, Any]) -> list[str]:
    """Components of the declaration module, which is imported alone."""
    values = project.get("entry-points", {}).get("rl.plugins", {}).values()
    paths = sorted(package.parent.glob("*/src"))
    found: list[str] = []
    for value in values:
        command = [sys.executable, "-c", LIST_DECLARATION, value, *paths]
        found += json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return sorted(found)


def broken_promises(old: Promises, new: Promises) -> Iterator[str]:
    """Each promise of `old` that `new` does not keep."""
    for path, before in old["protocols"].items():
        after = new["protocols"].get(path, {})  # one that is removed is reported with the names
        yield from (f"{path}: new member {name}, which implementations lack" for name in after if name not in before)
        yield from (
            f"{path}.{name}: {text} -> {after[name]}"
            for name, text in before.items()
            if name in after and after[name] != text
        )
    for name, text in old.get("hooks", {}).items():
        now = new["hooks"].get(name, text)
        if now != text:
            yield f"hook {name}: an answer {text} became {now}"
    for kind, (oldest, current) in old.get("contracts", {}).items():
        served = new["contracts"].get(kind)
        if served is None:
            yield f"CONTRACTS: kind {kind} was removed"
        elif served[0] > oldest or served[1] < current:
            yield f"CONTRACTS: {kind}/{oldest} to {kind}/{current} became {kind}/{served[0]} to {kind}/{served[1]}"
    yield from (f"component {name} was removed" for name in old["components"] if name not in new["components"])
    for name, before in old["bounds"].items():
        after = new["bounds"].get(name, "")
        if narrower(before, after, ours=name.rpartition(" ")[2].startswith("rl-")):
            yield f"dependency {name}{before} became {name}{after}"


def narrower(before: str, after: str, *, ours: bool) -> bool:
    """Whether a range refuses versions that it took before.

    A lower bound of one of our own distributions may rise within a compatible series: an installer upgrades it, and
    nothing breaks there.
    """
    (low, high), (new_low, new_high) = ends(before), ends(after)
    if new_high is not None and (high is None or new_high < high):
        return True
    if new_low is None or (low is not None and new_low <= low):
        return False
    return not (ours and low is not None and series(str(new_low)) == series(str(low)))


def ends(text: str) -> tuple[Version | None, Version | None]:
    """The lower and the upper end of a range."""
    lower = [Version(s.version.removesuffix(".*")) for s in SpecifierSet(text) if s.operator in (">=", ">", "==", "~=")]
    upper = [Version(s.version.removesuffix(".*")) for s in SpecifierSet(text) if s.operator in ("<", "<=", "==")]
    return max(lower, default=None), min(upper, default=None)


def series(version: str) -> tuple[int, ...]:
    """The part of a version within which nothing may break."""
    major, minor, *_ = (*(int(part) for part in version.split(".")[:2]), 0)
    return (0, minor) if major == 0 else (major,)
