"""What ``rl migrate`` makes of names and arguments: those of TorchRL, and older ones of this toolkit.

The names of TorchRL are in `rl.torchrl._names`. Its arguments are those that `foreign_arguments` of `rl.core.arguments`
answers at run time, asked of the installed classes, so that both say the same.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol

from rl.core.errors import ArgumentError, RLError
from rl.torchrl._names import ANOTHER_MEANING, MODULES, RENAMED, SAME_VALUES, SUBCLASSES, instead_of, is_module

_PAGE = "docs/coming-from-torchrl.md"


@dataclass(frozen=True)
class Answer:
    """What becomes of a name or an argument.

    Args:
        new: New dotted name, or new name of the argument; None if there is no counterpart.
        note: Comment for the reader; an empty string if there is nothing to decide.
        drop: Whether the argument is left out.
    """

    new: str | None = None
    note: str = ""
    drop: bool = False


class Source(Protocol):
    """Rules for the code of one library."""

    @property
    def roots(self) -> Sequence[str]:
        """Top-level modules of the library."""
        ...

    def name(self, old: str) -> Answer | None:
        """Return what becomes of a dotted name; None if it is none that the rules are about, such as a module."""
        ...

    def argument(self, new: str, argument: str, value: object) -> Answer:
        """Return what becomes of a keyword argument of a call of `new`; `value` is a literal, or `...` for another."""
        ...

    def subclass(self, new: str) -> str:
        """Return the note for a class that inherits from `new`; an empty string without one."""
        ...


class TorchRL:
    """Rules for TorchRL."""

    roots = ("torchrl",)

    def name(self, old: str) -> Answer | None:
        """See `Source`."""
        module, _, name = old.rpartition(".")
        if not module or (is_module(old.partition(".")[2]) and name not in RENAMED):
            return None
        if name in RENAMED:
            return Answer(RENAMED[name])
        if name in ANOTHER_MEANING:
            return Answer(note=f"{name} means something else here; see Equal names with another meaning in {_PAGE}")
        there = exports().get(name, [])
        if there:
            same = [one for one in there if one == module.replace("torchrl", "rl", 1)]
            near = [one for one in there if one in MODULES.get((*module.split("."), "")[1], ())]
            return Answer(f"{(same or near or there)[0]}.{name}")
        remedy = instead_of(name)
        return Answer(note=f"{name}: {remedy}" if remedy else f"{name} has no counterpart; see {_PAGE}")

    def argument(self, new: str, argument: str, value: object) -> Answer:
        """See `Source`."""
        owner = new.rpartition(".")[2]
        why, values, known = _answer(_load(new), argument)
        if known:
            return Answer()
        same = re.fullmatch(r"use (\w+)=", why)
        if same and argument in SAME_VALUES and value is not None:
            return Answer(same[1])
        if ... in values or any(type(value) is type(one) and value == one for one in values):
            return Answer(drop=True)
        return Answer(
            note=f"{owner}({argument}=): {why}" if why else f"{owner} has no argument {argument}=; see {_PAGE}"
        )

    def subclass(self, new: str) -> str:
        """See `Source`."""
        return SUBCLASSES.get(new.rpartition(".")[2], "")


NAMES = {
    "0.3": {
        "rl.core.Lowered": "rl.core.TensorFunction",
        "rl.core.lower": "rl.core.as_function",
        "rl.core.lower_distribution": "rl.core.as_distribution_function",
        "rl.core.lower_env": "rl.core.as_tensor_env",
        "rl.core.lowering.Lowered": "rl.core.tensor_functions.TensorFunction",
        "rl.core.lowering.LoweredDistribution": "rl.core.tensor_functions.DistributionFunction",
        "rl.core.lowering.chain": "rl.core.tensor_functions.chain",
        "rl.core.lowering.compile_with_warmup": "rl.core.tensor_functions.compile_with_warmup",
        "rl.core.lowering.lower": "rl.core.tensor_functions.as_function",
        "rl.core.lowering.lower_distribution": "rl.core.tensor_functions.as_distribution_function",
        "rl.core.lowering.lower_env": "rl.core.tensor_functions.as_tensor_env",
        "rl.core.lowering.run_layers": "rl.core.tensor_functions.run_layers",
        "rl.core.lowering.unhooked": "rl.core.tensor_functions.unhooked",
        "rl.core.testing.*": "rl.testing.*",
        "rl.collectors.MultiSyncDataCollector": "rl.collectors.MultiSyncCollector",
        "rl.collectors.MultiaSyncDataCollector": "rl.collectors.MultiAsyncCollector",
        "rl.collectors.SyncDataCollector": "rl.collectors.Collector",
    },
}
"""Our own names that were renamed, by the series that renamed them; ``*`` is any name of a module."""


class Renamed:
    """Rules for code that was written for an older series of this toolkit.

    Older names of settings are those that a configuration lists in ``renamed``.

    Args:
        version: Series that the code was written for, such as ``0.2``.

    Raises:
        ArgumentError: If it is no version.
    """

    roots = ("rl",)

    def __init__(self, version: str) -> None:
        if not re.fullmatch(r"\d+\.\d+(\.\d+)*", version):
            raise ArgumentError(f"rl migrate: --from rl== must be followed by a version such as 0.2, got {version!r}")
        self._names: dict[str, str] = {}
        for since, names in NAMES.items():
            if _series(since) > _series(version):
                self._names |= names

    def name(self, old: str) -> Answer | None:
        """See `Source`."""
        module, _, name = old.rpartition(".")
        new = self._names.get(old) or self._names.get(f"{module}.*", "").replace("*", name)
        if not new and not re.fullmatch(r"rl\.trainers(\.\w+)*\.\w+Config", old):  # whose settings may have other names
            return None
        return Answer(new or old)

    def argument(self, new: str, argument: str, value: object) -> Answer:
        """See `Source`."""
        del value
        if not new.endswith("Config"):
            return Answer()
        if find_spec("rl.trainers") is None:
            raise RLError("it has settings of rl-trainers: pip install rl-trainers")
        old_names = resolve_name("rl.trainers.config:old_names")
        return Answer(old_names(_load(new)).get(argument))

    def subclass(self, new: str) -> str:
        """See `Source`."""
        del new
        return ""


def _series(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


@cache
def exports() -> Mapping[str, list[str]]:
    """Return our installed modules by public name, in the order in which they are looked through."""
    return public_names(_ours())


def absent_packages() -> list[str]:
    """Return those of our packages with names of TorchRL that are not installed."""
    roots = dict.fromkeys(".".join(one.split(".")[:2]) for one in _ours())
    return [f"rl-{root.split('.')[1]}" for root in roots if find_spec(root) is None]


def _ours() -> list[str]:
    return list(dict.fromkeys(module for group in MODULES.values() for module in group))


@cache
def _load(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return resolve_name(f"{module}:{attribute}")


def _answer(target: Any, argument: str) -> tuple[str, tuple[object, ...], bool]:
    """Return what a class or function says to an argument at run time: sentence, ignored values, whether it has it."""
    calls = (
        [vars(cls)["__init__"] for cls in target.__mro__ if "__init__" in vars(cls)]
        if isinstance(target, type)
        else [target]
    )
    for call in calls:  # a constructor passes on to that of its base what it does not know
        answers: Any = getattr(call, "answers", None)
        if hasattr(type(answers), "keep") and argument in answers.table:  # an object may answer every name
            why, *values = answers.table[argument]
            return why, tuple(values), argument in answers.known
        try:
            parameters = inspect.signature(call).parameters
        except (TypeError, ValueError):
            return "", (), True
        if argument in parameters:
            return "", (), True
        if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            return "", (), False
    return "", (), not isinstance(target, type)


def public_names(modules: Iterable[str]) -> Mapping[str, list[str]]:
    """Return the modules among `modules` that export each name, in their order; none is imported.

    Modules that are not installed are left out.
    """
    found: dict[str, list[str]] = {}
    for module in modules:
        package, *rest = module.split(".")[1:]
        spec = find_spec(f"rl.{package}")
        if spec is None or not spec.submodule_search_locations:
            continue
        base = Path(next(iter(spec.submodule_search_locations))).joinpath(*rest)
        file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        if not file.is_file():
            continue
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            match node:
                case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=elements)):
                    for element in elements:
                        if isinstance(element, ast.Constant):
                            found.setdefault(str(element.value), []).append(module)
                case _:
                    pass
    return found
