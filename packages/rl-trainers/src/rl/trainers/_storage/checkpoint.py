"""Checkpoints of runs: written at once and checked by `rl.core.state`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl.core import state as states
from rl.core.errors import CheckpointError

__all__ = ["load_checkpoint", "save_checkpoint"]


def save_checkpoint(path: str | Path, state: Mapping[str, Any]) -> None:
    """Write `state` to `path`: all of it, or nothing and the old file stays.

    Args:
        path: a file, which is replaced in one step; its folder is created.
        state: nested dicts, lists and tuples of tensors, numbers, strings, booleans and None.

    Raises:
        CheckpointError: if the state holds something else, or the file cannot be written.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(Path(folder) / "x.safetensors", {"step": 3, "w": torch.ones(2)})
        ...     load_checkpoint(Path(folder) / "x.safetensors")
        {'step': 3, 'w': tensor([1., 1.])}
    """
    states.save(path, state)


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """The state that `save_checkpoint` wrote, with its tensors on the CPU.

    Raises:
        CheckpointError: if the file is missing, damaged, or was not written by `save_checkpoint`.
    """
    try:
        return states.load(path, mapped=False)  # users copy checkpoints over each other
    except CheckpointError as error:
        raise CheckpointError(
            f"{str(error).removesuffix('. Load another checkpoint; nothing was changed')}; use another checkpoint of"
            f" {Path(path).parent}, or train again into a new folder"
        ) from error
