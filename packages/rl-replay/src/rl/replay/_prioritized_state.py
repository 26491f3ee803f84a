"""What is checked of the state of a prioritized sampler, before anything of it is taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl.core.errors import CheckpointError, ContractError
from rl.replay._priorities import refuse_exponent

__all__ = ["FIXED", "refuse_state"]

FIXED = ("eps", "reduction", "max_priority_within_buffer")
"""Arguments of a sampler that its state must have too."""

_STATE = ("alpha", "beta", *FIXED, "raw", "priority", "largest")


def refuse_state(
    who: str, state: Mapping[str, Any], own: Mapping[str, Any], dtype: torch.dtype, max_capacity: int
) -> None:
    """Refuse the state of a sampler with other arguments or more rows.

    Args:
        who: for messages.
        state: of `PrioritizedSampler.state_dict`.
        own: the arguments `FIXED` of the sampler that takes it.
        dtype: of its priorities.
        max_capacity: how many rows it may have.

    Raises:
        CheckpointError: with what differs, or is damaged.
    """
    if not isinstance(state, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  who calls may not check
        raise CheckpointError(f"{who}: a state is what state_dict() gives, got {type(state).__name__}")
    missing = [name for name in _STATE if name not in state]
    if missing:
        raise CheckpointError(f"{who}: this state lacks {', '.join(missing)}; it is not the state of this sampler")
    for name, value in own.items():
        if state[name] != value:
            raise CheckpointError(f"{who} has {name}={value}, the state {name}={state[name]}")
    raw, priority, largest = (_tensor(who, state, name) for name in ("raw", "priority", "largest"))
    _refuse_settings(who, state, largest)
    if raw.dtype != dtype or raw.shape != priority.shape or raw.dim() != 1:
        raise CheckpointError(
            f"{who} has priorities of {dtype}, the state of {raw.dtype}, {list(raw.shape)} raw ones and "
            f"{list(priority.shape)} in the tree"
        )
    if not raw.isfinite().all():
        raise CheckpointError(f"{who}: the state is damaged: a raw priority is infinite or no number")
    if len(raw) > max_capacity:
        raise CheckpointError(f"{who} has max_capacity={max_capacity}, the state {len(raw)} rows")


def _refuse_settings(who: str, state: Mapping[str, Any], largest: Tensor) -> None:
    for name in ("alpha", "beta"):
        try:
            refuse_exponent(who, name, state[name])
        except ContractError as error:
            raise CheckpointError(f"{who}: the state is damaged: {error}") from error
    if largest.dim() or not 0 <= largest < torch.inf:
        raise CheckpointError(f"{who}: the state is damaged: its largest raw priority is {largest.tolist()}")


def _tensor(who: str, state: Mapping[str, Any], name: str) -> Tensor:
    value = state[name]
    if not isinstance(value, Tensor):
        raise CheckpointError(f"{who}: the state is damaged: {name} is a {type(value).__name__}, not a tensor")
    return value
