"""Presets in words. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from rl.trainers._config.presets import Preset
from rl.trainers._config.recipe import Recipe

__all__ = ["described_preset", "presets_page"]


def described_preset(preset: Preset) -> str:
    """Name and settings in one line, as options.

    Example:
        >>> described_preset(Preset("A-v1", {"gamma": 0.9, "hidden": (64, 64)}, "", (0,), (1.0,)))
        'preset A-v1: --gamma 0.9 --hidden [64,64]; without it: --preset none'
    """
    return f"preset {preset.name}: {_options(preset)}; without it: --preset none"


def presets_page(recipes: Iterable[Recipe], *, settings: bool) -> str:
    """The page of ``rl presets``: a line for each preset.

    Args:
        recipes: whose presets.
        settings: below each, list its settings and their source.
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
