"""Settings that may change when a run is resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rl.core.errors import CheckpointError
from rl.trainers._config.config import RunConfig
from rl.trainers._config.recipe import Recipe
from rl.trainers._storage.folder import RunFolder, settings_of

__all__ = ["CHANGEABLE", "check_resume"]

CHANGEABLE = frozenset({"total_frames", "device", "threads", "final_eval_episodes", "checkpoint_every", "loggers"})
"""Settings that may differ when a run is resumed."""


def check_resume(folder: RunFolder, recipe: Recipe, config: RunConfig, saved: Mapping[str, Any]) -> list[str]:
    """Refuse to continue a run with another recipe or with settings that may not change.

    Settings are compared with those in the checkpoint, so that an edited ``config.yaml`` is noticed.

    Returns:
        The settings that do change, as ``name=new (was old)``.

    Raises:
        CheckpointError: if recipe or settings differ, or all frames are done.
    """
    run = saved.get("run")
    frames = run.get("frames") if isinstance(run, dict) else None
    if run is None or not isinstance(frames, int):
        raise CheckpointError(f"{folder.last} is not the last checkpoint of a run; train again into a new folder")
    before = run.get("config") or folder.read_config()
    if before["recipe"] != recipe.reference:
        raise CheckpointError(
            f"{folder.path} is a run of {before['recipe']!r}, not of {recipe.reference!r}; resume it with"
            f" `rl train {before['recipe']} --resume {folder.path}`"
        )
    now = settings_of(recipe.reference, config)
    changed = {name: value for name, value in now.items() if before.get(name, value) != value}
    refused = [f"{name}={before[name]!r}, not {value!r}" for name, value in changed.items() if name not in CHANGEABLE]
    if refused:
        raise CheckpointError(
            f"{folder.path} was begun with {'; '.join(refused)}. Only {', '.join(sorted(CHANGEABLE))} may change on"
            " resume: leave the option out, put back what config.yaml held, or train into a new folder"
        )
    if frames >= config.total_frames and _has_result(folder, frames):
        raise CheckpointError(
            f"{folder.path} has done all its {frames} frames; ask for more:"
            f" rl train {recipe.reference} --resume {folder.path} --total-frames {2 * frames}"
        )
    return [f"{name}={value!r} (was {before[name]!r})" for name, value in changed.items()]


def _has_result(folder: RunFolder, frames: int) -> bool:
    """Whether the final evaluation after `frames` frames is done; it may have been interrupted."""
    try:
        summary = json.loads(folder.summary.read_text(encoding="utf-8"))
        done = summary["train_frames" if "train_frames" in summary else "frames"]  # the former in rl-trainers 0.3
        return done >= frames
    except (OSError, ValueError, KeyError, TypeError):
        return False
