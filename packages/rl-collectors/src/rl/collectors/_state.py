"""What a collector saves, as tensors and plain containers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import CheckpointError
from rl.core.interfaces import Leaves
from rl.core.keys import NestedKey, as_tuple, unwrap

__all__ = ["CollectorState", "pack", "unpack"]

_FIELDS = ("frames", "free_id", "ids", "root", "root_keys", "next_keys", "env")


@dataclass(frozen=True)
class CollectorState:
    """What `unpack` found.

    Args:
        frames: collected so far.
        free_id: the smallest trajectory id not used so far.
        ids: int64 ``[*B]``, trajectories under way; None before a reset.
        root: what the coming step starts from; None before a reset.
        root_keys: entries of every batch at the root; None if no batch was collected.
        next_keys: entries of every batch under ``next``.
        env: the environment's own state, or None.
    """

    frames: int
    free_id: int
    ids: Tensor | None
    root: Leaves | None
    root_keys: list[NestedKey] | None
    next_keys: list[NestedKey]
    env: Any


def pack(
    *,
    frames: int,
    free_id: int,
    ids: Tensor | None,
    root: Leaves | None,
    root_keys: Sequence[NestedKey] | None,
    next_keys: Sequence[NestedKey],
    env: Any,
) -> dict[str, Any]:
    """The state as a dictionary; tensors are copies."""
    return {
        "frames": frames,
        "free_id": free_id,
        "ids": None if ids is None else ids.clone(),
        "root": None if root is None else [[list(as_tuple(key)), _copy(leaf)] for key, leaf in root.items()],
        "root_keys": None if root_keys is None else [list(as_tuple(key)) for key in root_keys],
        "next_keys": [list(as_tuple(key)) for key in next_keys],
        "env": env,
    }


def unpack(state: Mapping[str, Any], batch_size: torch.Size) -> CollectorState:
    """The state from a dictionary.

    Raises:
        CheckpointError: if it is not one that `pack` made, or of another batch size.
    """
    lacking = [name for name in _FIELDS if name not in state]
    if lacking:
        raise CheckpointError(
            f"this is no state of a collector: it lacks {', '.join(lacking)} (it has"
            f" {', '.join(map(str, state)) or 'nothing'}); pass what Collector.state_dict() returned"
        )
    ids, root = state["ids"], state["root"]
    if ids is not None and ids.shape != batch_size:
        raise CheckpointError(
            f"the state was taken with environments of batch size {tuple(ids.shape)}, this collector has"
            f" {tuple(batch_size)}: load it into a collector with the same number of environments"
        )
    return CollectorState(
        frames=int(state["frames"]),
        free_id=int(state["free_id"]),
        ids=None if ids is None else ids.clone(),
        root=None if root is None else {unwrap(key): _copy(leaf) for key, leaf in root},
        root_keys=None if state["root_keys"] is None else [unwrap(key) for key in state["root_keys"]],
        next_keys=[unwrap(key) for key in state["next_keys"]],
        env=state["env"],
    )


def _copy(leaf: Any) -> Any:
    """A copy of a tensor; of an entry that is no tensor, its plain content."""
    if isinstance(leaf, Tensor):
        return leaf.detach().clone()
    return leaf.tolist() if hasattr(leaf, "tolist") else leaf
