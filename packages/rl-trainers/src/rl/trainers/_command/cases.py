"""The file of ``rl benchmark``. Imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl.trainers._command.arguments import UsageError, parse_train, read_yaml
from rl.trainers._config.config import RunConfig
from rl.trainers._config.fields import config_fields
from rl.trainers._config.recipe import Recipe
from rl.trainers._config.trust import check_trusted
from rl.trainers._storage.folder import file_name, settings_of

__all__ = ["Case", "read_cases"]


@dataclass(frozen=True)
class Case:
    """One line of a benchmark.

    Args:
        name: of its folder.
        recipe: the recipe.
        config: its settings; the seed is replaced.
        seeds: of its runs.
        reference: return that it is compared with; None without one.
        source: where that return is from.
    """

    name: str
    recipe: Recipe
    config: RunConfig
    seeds: tuple[int, ...]
    reference: float | None = None
    source: str = ""


_KEYS = ("name", "recipe", "env", "frames", "seeds", "preset", "settings", "reference", "source")


def read_cases(path: str, trust: Sequence[str] = ()) -> list[Case]:
    """The cases of a file.

    Args:
        path: YAML with ``cases``, a list of mappings with ``recipe`` and ``env`` and optionally ``frames``, ``seeds``,
            ``preset``, ``settings`` (options of the recipe), ``reference``, ``source`` and ``name``
            (``RECIPE-ENV`` if absent), and ``seeds`` for cases without their own, ``[0, 1, 2]`` if absent.
        trust: modules that the cases may name.

    Raises:
        UsageError: if the file cannot be read, or a case is wrong.
        RLError: if it names a module that is not trusted.
    """
    values = read_yaml(path)
    given = values.get("cases")
    if set(values) - {"seeds", "cases"} or not isinstance(given, list) or not given:
        raise UsageError(f"{path} has {', '.join(values) or 'nothing'}; write seeds: [0, 1, 2] and cases: [...]")
    cases: list[Case] = []
    for number, entry in enumerate(given, start=1):
        try:
            case = _case(entry, values.get("seeds", [0, 1, 2]), trust, path)
            check_trusted(settings_of(case.recipe.reference, case.config), trust, path)
            cases.append(case)
        except (UsageError, TypeError, ValueError) as error:
            raise UsageError(f"{path}, case {number}: {error}") from error
    names = [case.name for case in cases]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{path} has several cases {', '.join(twice)}: give each a name")
    return cases


def _case(entry: Any, seeds: Sequence[int], trust: Sequence[str], path: str) -> Case:
    if not isinstance(entry, Mapping) or not {"recipe", "env"} <= entry.keys() or entry.keys() - {*_KEYS}:
        raise UsageError(f"a case has recipe and env, and may have {', '.join(_KEYS)}; got {entry}")
    check_trusted({"recipe": entry["recipe"]}, trust, path)
    words = [str(entry["recipe"]), *map(str, entry.get("settings") or {})]
    other = sorted({"config", "display", "out", "resume", "seed", "seeds", "trust"} & {*words[1:]})
    other += [word for word in words if not re.fullmatch(r"[\w.:][\w.:-]*", word)]  # such as seed=1, or --out
    if other:
        raise UsageError(f"settings has {', '.join(other)}, which is no setting of a recipe: remove it")
    settings: dict[str, Any] = {"env": entry["env"], **(entry.get("settings") or {})}
    settings |= {"total_frames": entry["frames"]} if "frames" in entry else {}
    settings |= {"preset": entry["preset"]} if "preset" in entry else {}
    settings["seeds"] = ",".join(map(str, entry.get("seeds", seeds)))
    options = [word for name, value in settings.items() for word in _words(name, value)]
    arguments = parse_train([str(entry["recipe"]), *options])
    assert not isinstance(arguments, str)
    reference = entry.get("reference")
    return Case(
        file_name(str(entry.get("name", f"{entry['recipe']}-{entry['env']}"))),
        arguments.recipe,
        arguments.config,
        arguments.seeds,
        None if reference is None else float(reference),
        str(entry.get("source", "")),
    )


#: settings whose option is given once for each value
_REPEATED = frozenset(field.name for field in config_fields(RunConfig) if field.repeated)


def _words(name: str, value: Any) -> list[str]:
    values = value if name in _REPEATED and isinstance(value, list) else [value]
    return [f"--{name}={one if isinstance(one, str) else json.dumps(one)}" for one in values]
