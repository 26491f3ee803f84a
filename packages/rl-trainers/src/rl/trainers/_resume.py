"""What may change when a run is resumed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from rl.core.errors import CheckpointError
from rl.trainers._recipe import Recipe
from rl.trainers._run_config import RunConfig
from rl.trainers._run_folder import RunFolder

__all__ = ["CHANGEABLE", "check_resume"]

CHANGEABLE = frozenset({"total_frames", "device", "threads", "final_eval_episodes", "checkpoint_every", "loggers"})
"""Settings that a resumed run may have otherwise than it began with."""


def check_resume(folder: RunFolder, recipe: Recipe, config: RunConfig, saved: Mapping[str, Any]) -> None:
    """Refuse to continue a run as something that it is not.

    Raises:
        CheckpointError: if recipe or settings differ, or all frames are done.
    """
    values = folder.read_config()
    if values["recipe"] != recipe.name:
        raise CheckpointError(
            f"{folder.path} is a run of {values['recipe']!r}, not of {recipe.name!r}; resume it with"
            f" `rl train {values['recipe']} --resume {folder.path}`"
        )
    for name, value in dataclasses.asdict(config).items():
        before = values.get(name, value)
        before = tuple(before) if isinstance(value, tuple) else before
        if before != value and name not in CHANGEABLE:
            raise CheckpointError(
                f"{folder.path} was begun with {name}={before!r}, and cannot go on with {value!r}; only"
                f" {', '.join(sorted(CHANGEABLE))} may change: leave the option out, or train into a new folder"
            )
    run = saved.get("run")
    frames = run.get("frames") if isinstance(run, dict) else None
    if not isinstance(frames, int):
        raise CheckpointError(f"{folder.last} is not the last checkpoint of a run; train again into a new folder")
    if frames >= config.total_frames and _has_result(folder, frames):
        raise CheckpointError(
            f"{folder.path} has done all its {frames} frames; ask for more:"
            f" rl train {recipe.name} --resume {folder.path} --total-frames {2 * frames}"
        )


def _has_result(folder: RunFolder, frames: int) -> bool:
    """Whether the final evaluation after so many frames has been made; it may have been interrupted."""
    try:
        return json.loads(folder.summary.read_text(encoding="utf-8"))["train_frames"] >= frames
    except (OSError, ValueError, KeyError, TypeError):
        return False
