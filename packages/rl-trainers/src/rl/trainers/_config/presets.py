"""`Preset`: settings of a recipe for an environment, with the returns that were measured. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

__all__ = ["Preset", "preset_for", "read_presets"]


@dataclass(frozen=True)
class Preset:
    """Settings for one environment.

    Args:
        name: id of the environment.
        settings: of the recipe, by name; all others have their defaults.
        source: where the settings come from.
        seeds: of the runs that were measured with these settings.
        returns: of the best policy of each of these runs on fresh episodes.
    """

    name: str
    settings: Mapping[str, Any]
    source: str
    seeds: tuple[int, ...]
    returns: tuple[float, ...]


def read_presets(target: str) -> dict[str, Preset]:
    """The presets of a YAML file, by name.

    Args:
        target: ``package:file``. The file maps names to ``settings``, ``source``, ``seeds`` and ``returns``.

    Example:
        >>> read_presets("rl.trainers.recipes.ppo:presets.yaml")["Pendulum-v1"].settings["gamma"]
        0.9
    """
    package, _, file = target.partition(":")
    text = (files(package) / file).read_text(encoding="utf-8")
    return {
        name: Preset(
            name,
            {key: tuple(value) if isinstance(value, list) else value for key, value in entry["settings"].items()},
            entry["source"],
            tuple(entry["seeds"]),
            tuple(entry["returns"]),
        )
        for name, entry in (yaml.safe_load(text) or {}).items()
    }


def preset_for(presets: Mapping[str, Preset], env: str) -> Preset | None:
    """The preset of an environment, also for ``gym/ID``; None if there is none.

    Example:
        >>> preset_for({}, "CartPole-v1") is None
        True
    """
    return presets.get(env.removeprefix("gym/"))
