"""The public API of a package as text, one signature a line, read from the sources without importing them.

    rl.core:Contract.rename def(names: Mapping[str, str]) -> Contract
    rl.core.errors:ShapeError is rl.core:ShapeError
    rl.core.keys:REWARD values 'reward'
    rl.core:ShapeError class(Exception, RLError, ValueError)
    argument --quick of rl doctor
    dependency torch>=2.11

An object is described at its shortest import path, which the others name; an inherited member, at the public class that
has it.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from packaging.requirements import Requirement

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


def present_api(package: Path) -> tuple[set[str], set[str]]:
    """Return the lines of a package as its sources have it, and those of inherited members, not in the text."""
    name = f"rl.{package.name.removeprefix('rl-').replace('-', '_')}"
    loaded: Any = griffe.load(
        name, search_paths=[package / "src"], allow_inspection=False, resolve_aliases=True, resolve_external=False
    )
    public = dict(public_objects(loaded))
    paths: dict[str, list[str]] = {}  # all import paths of an object
    for path, found in public.items():
        paths.setdefault(found if isinstance(found, str) else found.path, []).append(path)
    lines: set[str] = set()
    inherited: set[str] = set()
    for target, same in paths.items():
        first, *others = sorted(same, key=lambda path: (path.count("."), path))
        found = public[first]
        lines |= {f"{path} is {first}" for path in others}
        if isinstance(found, str):
            lines.add(f"{first} is {target}")
            continue
        lines |= {*facts(first, found)}
        for path, member, own in members(first, found, paths) if isinstance(found, griffe.Class) else ():
            (lines if own else inherited).update(facts(path, member))
    if "components" in loaded.members:
        contracts = ast.literal_eval(str(loaded["component.CONTRACTS"].value))
        lines |= {f"contract {kind}/{oldest} to {kind}/{now}" for kind, (oldest, now) in contracts.items()}
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    lines |= {*dependencies(project), *declared_names(project), *components(package, project), *command_line(package)}
    return lines, inherited - lines


def public_objects(module: griffe.Module) -> Iterator[tuple[str, griffe.Object | str]]:
    """Public modules with their classes, functions and constants, as ``module:name`` for each import path.

    What another distribution has is its path.
    """
    yield module.path, module
    exported = None if module.exports is None else set(map(str, module.exports))
    for name in exported or ():
        yield f"{module.path}:{name}", origin(module.members.get(name, f"{module.path}.{name}"))
    for name, member in module.members.items():
        if name.startswith("_") or member.is_alias:
            continue
        if isinstance(member, griffe.Module):
            yield from public_objects(member)
        elif exported is None or module.path.endswith(".hookspecs"):
            yield f"{module.path}:{name}", origin(member)


def origin(member: griffe.Object | griffe.Alias | str) -> griffe.Object | str:
    """Return what a name stands for; the path of what is not in this package."""
    if not isinstance(member, griffe.Alias):
        return member
    try:
        return member.final_target
    except griffe.AliasResolutionError:
        return member.target_path


def members(path: str, kind: griffe.Class, public: dict[str, list[str]]) -> Iterator[tuple[str, Any, bool]]:
    """Yield the public members of a class, and whether they are its own: of the class, or of a private base."""
    nearest = {name: one for base in reversed(list(lineage(kind))) for name, one in base.members.items()}
    for name, member in nearest.items():
        if member.is_alias or (name.startswith("_") and not (member.is_function and name.endswith("__"))):
            continue
        own = member.parent in (None, kind) or member.parent.path not in public
        yield f"{path}.{name}", member, own
        if isinstance(member, griffe.Class):
            yield from ((inner, one, own) for inner, one, _ in members(f"{path}.{name}", member, public))


def facts(path: str, found: Any) -> Iterator[str]:
    """Yield the lines of one object, or of one member of a class."""
    if isinstance(found, griffe.Module):
        yield f"{path} module"
    elif isinstance(found, griffe.Class):
        protocol = any(str(base).startswith("Protocol") for base in found.bases)
        kind = "protocol" if protocol else "settings" if is_settings(found) else "class"
        yield f"{path} {kind}({', '.join(sorted(ancestors(found)))})"
        written = outputs(found) if "loss" in path.lower() else ()
        if written:
            yield f"{path} outputs {', '.join(sorted(written))}"
    elif isinstance(found, griffe.Function):
        kind = next(iter({"classmethod", "staticmethod"} & found.labels), "def")
        if found.name != "__init__" or not is_settings(found.parent):
            yield f"{path} {found.signature(return_type=True, name=kind)}"
        if path.startswith("rl.core.hookspecs:rl_"):
            yield f"{path} hooks {found.returns}{options(found)}"
    else:
        kind = "property" if "property" in found.labels else "attribute"
        default = f" = {found.value}" if is_settings(found.parent) and found.value is not None else ""
        yield f"{path} {kind}{'' if found.annotation is None else f' {found.annotation}'}{default}"
        if is_constant(path, found):
            yield f"{path} values {found.value}"


def is_settings(kind: Any) -> bool:
    """Whether it is a dataclass made with keywords alone, which is described field by field."""
    if not isinstance(kind, griffe.Class) or "dataclass" not in kind.labels or "__init__" not in kind.members:
        return False
    return all(one.kind is griffe.ParameterKind.keyword_only for one in [*kind["__init__"].parameters][1:])


def lineage(kind: griffe.Class) -> Iterator[griffe.Class]:
    """Yield a class and its bases in the same package, each after the classes that inherit from it."""
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
    """Return the lines of a class, which may be nested."""
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    return [line[indent:] for line in lines]


def is_constant(path: str, found: Any) -> bool:
    """Whether it is a public constant: a name in capitals, or the default keys of a loss or an estimator."""
    name = re.split(r"[:.]", path)[-1]
    named = (name.isupper() and name != "CONTRACTS") or name == "default_keys"
    return named and isinstance(found, griffe.Attribute) and found.value is not None


def options(spec: griffe.Function) -> str:
    """Return the arguments of the decorator of a hook: `` firstresult=True``, or nothing."""
    return "".join(re.sub(r"^\w+\(?(.*?)\)?$", r" \1", str(one.value)) for one in spec.decorators).rstrip()


def dependencies(project: dict[str, Any]) -> Iterator[str]:
    """Yield the range of each dependency with its extras and marker, that of an extra as ``extra: name``."""
    yield f"dependency python{project['requires-python']}"
    yield from (f"dependency {Requirement(need)}" for need in project["dependencies"])
    for extra, needs in project.get("optional-dependencies", {}).items():
        yield from (f"dependency {extra}: {Requirement(need)}" for need in needs)


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
    """Yield the subcommand whose parser a function makes, and the options that it adds."""
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
