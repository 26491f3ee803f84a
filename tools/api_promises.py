"""What a package promises besides its importable names, as data: protocols, hooks, values, types, options, bounds.

`promises` reads them from the sources; `broken_promises` compares two of them, each difference as a sentence.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
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
    public = dict(public_objects(module))
    classes = {path: found for path, found in public.items() if isinstance(found, griffe.Class)}
    found: Promises = {
        "protocols": {path: members(kind) for path, kind in classes.items() if is_protocol(kind)},
        "bases": {path: sorted(ancestors(kind)) for path, kind in classes.items()},
        "outputs": {path: sorted(outputs(kind)) for path, kind in classes.items() if "loss" in path.lower()},
        "returns": {path: text for path, one in parts_of(public) for text in return_types(one)},
        "values": {path: str(one.value) for path, one in parts_of(public) if is_constant(path, one)},
        "bounds": bounds(project),
        "names": sorted({*declared_names(project), *components(package, project), *command_line(package)}),
    }
    if "hookspecs" in module.members:
        specs = module["hookspecs"].members.items()
        found["hooks"] = {name: f"{spec.returns}{options(spec)}" for name, spec in specs if name.startswith("rl_")}
    if "components" in module.members:
        found["contracts"] = ast.literal_eval(str(module["component.CONTRACTS"].value))
    return found


def public_objects(module: griffe.Object) -> Iterator[tuple[str, griffe.Object]]:
    """Classes, functions and constants of the public modules of a package, as ``module:name`` of each import path."""
    exported = None if module.exports is None else set(map(str, module.exports))
    for name, member in module.members.items():
        if name.startswith("_") or (member.is_alias and name not in (exported or ())):
            continue
        if isinstance(member, griffe.Alias):
            if not member.target_path.startswith(f"{'.'.join(module.path.split('.')[:2])}."):
                continue  # of another package
            try:
                found: Any = member.final_target
            except griffe.AliasResolutionError:  # our name for a class of another project
                continue
        else:
            found = member
        if isinstance(found, griffe.Module):
            yield from public_objects(found) if found is member else ()
        elif exported is None or name in exported or module.path.endswith(".hookspecs"):
            yield f"{module.path}:{name}", found


def exports(module: griffe.Object) -> Iterator[str]:
    """The names in ``__all__`` of the public modules of a package, each after its module."""
    yield from (f"{module.path}: {name}" for name in map(str, module.exports or ()))
    for name, member in module.members.items():
        if not name.startswith("_") and isinstance(member, griffe.Module):
            yield from exports(member)


def is_protocol(kind: griffe.Class) -> bool:
    """Whether a class is a protocol."""
    return any(str(base).startswith("Protocol") for base in kind.bases)


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


def lineage(kind: griffe.Class) -> Iterator[griffe.Class]:
    """A class and its bases in the same package, each after the classes that inherit from it."""
    yield kind
    for base in kind.resolved_bases:
        found: Any = base.final_target if isinstance(base, griffe.Alias) else base
        if isinstance(found, griffe.Class):
            yield from lineage(found)


def ancestors(kind: griffe.Class) -> set[str]:
    """Names of the public classes that a class inherits from, directly or not: what `except` and `isinstance` see."""
    names = {re.split(r"\W", str(base).rpartition(".")[2])[0] for one in lineage(kind) for base in one.bases}
    return {name for name in names if not name.startswith("_")}


def outputs(kind: griffe.Class) -> set[str]:
    """Keys of the scalars that a loss writes: literal arguments of `scalar`, and class attributes that name a loss."""
    found: set[str] = set()
    named: dict[str, str] = {}
    for one in lineage(kind):
        for node in ast.walk(ast.parse("\n".join(dedent_lines(one.lines)))):
            if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
                named.setdefault(ast.unparse(node.target), str(node.value.value))  # that of the nearest class
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) == "scalar"
                and isinstance(node.args[0], ast.Constant)
            ):
                found.add(str(node.args[0].value))
    return found | {text for text in named.values() if text.startswith("loss_")}


def dedent_lines(lines: list[str]) -> list[str]:
    """The lines of a class, which may be nested."""
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    return [line[indent:] for line in lines]


def parts_of(public: dict[str, griffe.Object]) -> Iterator[tuple[str, Any]]:
    """Public objects, and public members of classes, also those of bases that are not public themselves."""
    shared = {found.path for found in public.values()}
    for path, found in public.items():
        yield path, found
        if isinstance(found, griffe.Class):
            own = {name: one for kind in reversed(list(lineage(found))) for name, one in kind.members.items()}
            for name, member in own.items():
                if not name.startswith("_") and (member.parent is found or member.parent.path not in shared):
                    yield f"{path}.{name}", member


def return_types(found: Any) -> list[str]:
    """The annotated type of what a function returns, or a property is; nothing for others."""
    if isinstance(found, griffe.Attribute):
        return [str(found.annotation)] if "property" in found.labels and found.annotation is not None else []
    return [str(found.returns)] if isinstance(found, griffe.Function) and found.returns is not None else []


def is_constant(path: str, found: Any) -> bool:
    """Whether it is a public constant: a name in capitals, or the default keys of a loss or an estimator."""
    name = re.split(r"[:.]", path)[-1]
    named = (name.isupper() and name != "CONTRACTS") or name == "default_keys"
    return named and isinstance(found, griffe.Attribute) and found.value is not None


def options(spec: griffe.Object) -> str:
    """The arguments of the decorator of a hook: `` firstresult=True``, or nothing."""
    return "".join(re.sub(r"^\w+\(?(.*?)\)?$", r" \1", str(one.value)) for one in spec.decorators).rstrip()


def bounds(project: dict[str, Any]) -> dict[str, str]:
    """The range of each dependency with its extras and marker; of those of an extra as `extra: name`."""
    found = {"python": project["requires-python"]}
    extras = [("", project["dependencies"]), *project.get("optional-dependencies", {}).items()]
    for extra, lines in extras:
        for need in map(Requirement, lines):
            wanted = f"[{','.join(sorted(need.extras))}]" if need.extras else ""
            where = f"; {need.marker}" if need.marker else ""
            found[f"{f'{extra}: ' if extra else ''}{need.name}{wanted}{where}"] = str(need.specifier)
    return found


def declared_names(project: dict[str, Any]) -> Iterator[str]:
    """Extras, console scripts and entry points."""
    yield from (f"extra {name}" for name in project.get("optional-dependencies", {}))
    yield from (f"script {name}" for name in project.get("scripts", {}))
    for group, entries in project.get("entry-points", {}).items():
        yield from (f"entry point {name} of group {group}" for name in entries)


def components(package: Path, project: dict[str, Any]) -> list[str]:
    """Components and commands of the declaration module, which is imported alone."""
    paths = sorted(package.parent.glob("*/src"))
    found: list[str] = []
    for value in project.get("entry-points", {}).get("rl.plugins", {}).values():
        command = [sys.executable, "-c", LIST_DECLARATION, value, *paths]
        found += json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return [f"component {name}" if not name.startswith("command ") else name for name in found]


def command_line(package: Path) -> Iterator[str]:
    """Environment variables, and subcommands of ``rl`` with their options."""
    for file in sorted((package / "src").rglob("*.py")):
        text = file.read_text()
        if file.match("rl/core/settings.py"):
            yield from (f"environment variable {name}" for name in re.findall(r'"(RL_[A-Z_]+)"', text))
        if ".add_argument(" not in text and "Parser(" not in text:
            continue
        for function in ast.walk(ast.parse(text)):
            if isinstance(function, ast.FunctionDef):
                yield from options_of(function)


def options_of(function: ast.FunctionDef) -> Iterator[str]:
    """The subcommand whose parser a function makes, and the options that it adds."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and node.args]
    first = [(ast.unparse(call.func).rpartition(".")[2], call.args[0]) for call in calls]
    literal = [(name, str(value.value)) for name, value in first if isinstance(value, ast.Constant)]
    title = next((text for name, text in literal if name.endswith("Parser")), function.name)
    for name, text in literal:
        if name.endswith("Parser"):
            yield f"subcommand {text}"
        elif name == "add_parser":
            yield f"subcommand {title} {text}"
        elif name == "add_argument":
            yield f"argument {text} of {title}"


def broken_promises(old: Promises, new: Promises) -> Iterator[str]:
    """Each promise of `old` that `new` does not keep."""
    yield from dict.fromkeys(broken_protocols(old["protocols"], new["protocols"]))
    for what, keeps in KEPT.items():
        reported = set()
        for path, before in old.get(what, {}).items():
            after = new[what].get(path, before)  # what was removed is reported with the names
            name = path.rpartition(":")[2]  # an object may have several import paths
            if not keeps(before, after) and name not in reported:
                reported.add(name)
                yield f"{path}: {what} {show(before)} became {show(after)}"
    for kind, (oldest, current) in old.get("contracts", {}).items():
        served = new["contracts"].get(kind)
        if served is None:
            yield f"CONTRACTS: kind {kind} was removed"
        elif served[0] > oldest or served[1] < current:
            yield f"CONTRACTS: {kind}/{oldest} to {kind}/{current} became {kind}/{served[0]} to {kind}/{served[1]}"
    yield from (f"{name} was removed" for name in old["names"] if name not in new["names"])
    yield from narrower_bounds(old, new)


def broken_protocols(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Members that implementations lack, or have with another signature."""
    for path, before in old.items():
        after = new.get(path, {})  # one that is removed is reported with the names
        yield from (f"{path}: new member {name}, which implementations lack" for name in after if name not in before)
        yield from (
            f"{path}.{name}: {text} -> {after[name]}"
            for name, text in before.items()
            if name in after and after[name] != text
        )


def narrower_bounds(old: Promises, new: Promises) -> Iterator[str]:
    """Dependencies that are new, except those of a new extra, or refuse versions that they took before."""
    for name, after in new["bounds"].items():
        before = old["bounds"].get(name)
        extra = name.partition(": ")[0] if ": " in name else ""
        if before is None and (not extra or f"extra {extra}" in old["names"]):
            yield f"dependency {name}{after} is new"
        elif before is not None and narrower(before, after, ours=name.rpartition(" ")[2].startswith("rl-")):
            yield f"dependency {name}{before} became {name}{after}"


def alternatives(text: str) -> set[str]:
    """The alternatives of a type, the items of a dict, or the text itself."""
    tree = ast.parse(text, mode="eval").body
    if isinstance(tree, ast.Dict):
        items = zip(tree.keys, tree.values, strict=True)
        return {f"{'**' if key is None else ast.unparse(key)}: {ast.unparse(value)}" for key, value in items}
    found, stack = set(), [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            stack += [node.left, node.right]
        else:
            found.add(ast.unparse(node))
    return found


def contains(before: Iterable[str], after: Iterable[str]) -> bool:
    """Whether everything of before is there."""
    return set(before) <= set(after)


KEPT = {
    "bases": contains,
    "outputs": contains,
    "returns": lambda before, after: contains(alternatives(after), alternatives(before)),
    "values": lambda before, after: (
        before == after or ("{" in before and contains(alternatives(before), alternatives(after)))
    ),
    "hooks": lambda before, after: before == after,
}
"""For each part of the promises whether `after` keeps what `before` promised."""


def show(value: Any) -> str:
    """A text, or a list as one."""
    return value if isinstance(value, str) else ", ".join(value) or "none"


def narrower(before: str, after: str, *, ours: bool) -> bool:
    """Whether a range refuses versions that it took before.

    A lower bound of one of our own distributions may rise within a compatible series: an installer upgrades it, and
    nothing breaks there.
    """
    if {clause.version for clause in SpecifierSet(after) if clause.operator == "!="} - {
        clause.version for clause in SpecifierSet(before) if clause.operator == "!="
    }:
        return True
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
