"""Presets: settings of a recipe for an environment, and the page that lists them. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from statistics import median
from typing import Any

import yaml

from rl.core.errors import ArgumentError


@dataclass(frozen=True)
class Preset:
    """Settings for one environment.

    Args:
        name: Id of the environment.
        settings: Settings of the recipe, by name; all others have their defaults.
        source: Origin of the settings.
        seeds: Seeds of the runs that were measured with these settings.
        returns: Returns of the best policy of each of these runs on fresh episodes.
    """

    name: str
    settings: Mapping[str, Any]
    source: str
    seeds: tuple[int, ...]
    returns: tuple[float, ...]


def read_presets(target: str) -> dict[str, Preset]:
    """Read the presets of a YAML file, by name, with the returns that ``results.json`` next to it has for them.

    Args:
        target: Name ``package:file``, or ``package:file:section`` for the part of the file that is below a name, that
            of the algorithm. The file maps names of environments to ``settings`` and ``source``; ``results.json`` is a
            file of ``rl benchmark``, in which ``case`` names a case: by default that of the algorithm on the
            environment. An entry that has none there may have ``seeds`` and ``returns`` of its own.

    Example:
        >>> read_presets("rl.trainers:presets/ppo.yaml:ppo")["Pendulum-v1"].settings["gamma"]
        0.9
    """
    package, _, rest = target.partition(":")
    file, _, section = rest.partition(":")
    path = files(package) / file
    entries = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    if section:
        entries = entries.get(section) or {}
    returns = _returns(files(package) / f"{file.rpartition('/')[0]}/results.json")
    presets: dict[str, Preset] = {}
    for name, entry in entries.items():
        case = entry.get("case", f"{section}-{name.replace('/', '-')}")
        own = tuple(entry.get("seeds", ())), tuple(entry.get("returns", ()))
        settings = {key: tuple(value) if isinstance(value, list) else value for key, value in entry["settings"].items()}
        presets[name] = Preset(name, settings, entry["source"], *returns.get(case, own))
    return presets


def preset_in(sections: Any, path: str, recipe: str, env: str) -> Preset:
    """Return the preset of an environment in a file, as ``rl tune`` writes one.

    Args:
        sections: Contents ``RECIPE: {ENV: {settings: ...}}``. ``source``, ``seeds`` and ``returns`` may be left out.
        path: Path of the file, for messages.
        recipe: Name of the recipe.
        env: Environment; the only entry of the recipe is taken for any.

    Raises:
        ArgumentError: If there is no such preset.
    """
    entries = sections.get(recipe) if isinstance(sections, Mapping) else None
    if not isinstance(entries, Mapping) or not all(isinstance(entry, Mapping) for entry in entries.values()):
        has = ", ".join(map(str, sections)) if isinstance(sections, Mapping) else type(sections).__name__
        raise ArgumentError(
            f"the preset {path} has {has}, and nothing of {recipe}; write {recipe}: {{ENV: {{settings: ...}}}}"
        )
    name = env.removeprefix("gym/")
    if name not in entries:
        if len(entries) != 1:
            raise ArgumentError(f"the preset {path} is for {', '.join(entries)}, not for {name}: name one with --env")
        name = next(iter(entries))
    entry = entries[name]
    settings = entry.get("settings")
    if not isinstance(settings, Mapping):
        raise ArgumentError(f"the preset {path} has no settings of {name}; write settings: {{gamma: 0.98}}")
    plain = {str(key): tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    return Preset(
        path, plain, str(entry.get("source", path)), tuple(entry.get("seeds", ())), tuple(entry.get("returns", ()))
    )


def _returns(path: Any) -> dict[str, tuple[tuple[int, ...], tuple[float, ...]]]:
    """Seeds and returns of the best policies by case."""
    if not path.is_file():
        return {}
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return {case["name"]: (tuple(case["seeds"]), tuple(case["best/return_mean"]["values"])) for case in cases}


def preset_for(presets: Mapping[str, Preset], env: str) -> Preset | None:
    """Return the preset of an environment, also for ``gym/ID``; None if there is none.

    Example:
        >>> preset_for({}, "CartPole-v1") is None
        True
    """
    return presets.get(env.removeprefix("gym/"))


def describe_preset(preset: Preset) -> str:
    """Name and settings in one line, as options.

    Example:
        >>> describe_preset(Preset("A-v1", {"gamma": 0.9, "num_cells": (64, 64)}, "", (0,), (1.0,)))
        'preset A-v1: --gamma 0.9 --num-cells [64,64]; without it: --preset none'
    """
    return f"preset {preset.name}: {_options(preset)}; without it: --preset none"


def presets_page(recipes: Iterable[Any], *, settings: bool) -> str:
    """Return the page of ``rl presets``: a line for each preset.

    Args:
        recipes: Recipes whose presets are listed.
        settings: Whether to list the settings of each preset and their source.
    """
    recipes = list(recipes)
    width = max(len(name) for name in ("recipe", *(recipe.name for recipe in recipes)))
    lines = [f"{'recipe':<{width}} {'preset':<30} {'frames':>9}  best return by seed"]
    for recipe in recipes:
        for preset in recipe.load_presets().values():
            frames = preset.settings.get("total_frames", recipe.config.total_frames)
            returns = ", ".join(f"{value:.1f}" for value in preset.returns)
            middle = f" (median {median(preset.returns):.1f})" if len(preset.returns) > 1 else ""
            lines.append(f"{recipe.name:<{width}} {preset.name:<30} {frames:>9}  {returns}{middle}")
            if settings:
                lines += [f"    {_options(preset)}", f"    source: {preset.source}"]
    return "\n".join(lines) + "\n"


def _options(preset: Preset) -> str:
    return " ".join(f"--{name.replace('_', '-')} {_value(value)}" for name, value in preset.settings.items())


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return f"'{{{', '.join(f'{key}: {_value(one)}' for key, one in value.items())}}}'"
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
