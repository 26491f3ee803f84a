"""Check of a collector's saved state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rl.core.errors import CheckpointError
from rl.core.state import unpack

__all__ = ["unpack_state"]

_FIELDS = ("frames", "free_id", "ids", "root", "root_keys", "next_keys", "env")
_LATER = {"policy_version": 0, "trajectories": None}  # absent in states of earlier versions


def unpack_state(
    state: Mapping[str, Any], batch_size: torch.Size, home: torch.device, storing: torch.device
) -> dict[str, Any]:
    """The fields of a state, copied; the environment's own as it is.

    Args:
        state: State of a collector, on any device; its file has it on the CPU.
        batch_size: Batch size of the environments.
        home: Device of the environment, which reads the root and numbers the trajectories.
        storing: Device of the batches, to which the saved trajectories are added.

    Raises:
        CheckpointError: if it is not the state of a collector, or of another batch size.
    """
    lacking = [name for name in _FIELDS if name not in state]
    if lacking:
        raise CheckpointError(
            f"this is no state of a collector: it lacks {', '.join(lacking)} (it has"
            f" {', '.join(map(str, state)) or 'nothing'}); pass what Collector.state_dict() returned"
        )
    known = {name: state[name] for name in _FIELDS if name != "env"}
    later = {name: state.get(name, value) for name, value in _LATER.items()}
    found = unpack(known | later | {"trajectories": None}, "Collector", home)
    found["trajectories"] = unpack(later["trajectories"], "Collector", storing)
    ids = found["ids"]
    if ids is not None and ids.shape != batch_size:
        raise CheckpointError(
            f"the state was taken with environments of batch size {tuple(ids.shape)}, this collector has"
            f" {tuple(batch_size)}: load it into a collector with the same number of environments"
        )
    return {**found, "env": state["env"]}
