"""What may stand in a state: tensors, numbers, strings, None, and lists, tuples and dicts of these."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import CheckpointError
from rl.replay._layout import Layout, flatten

__all__ = ["pack", "require_plain", "unpack"]

_TAG = "__rows__"


def require_plain(value: Any, who: str) -> None:
    """Raise unless `value` can be stored without pickle.

    Raises:
        CheckpointError: naming `who` and the type that was found.
    """
    if value is None or isinstance(value, (bool, int, float, str, Tensor)):
        return
    if isinstance(value, (list, tuple)):
        for item in value:
            require_plain(item, who)
        return
    if isinstance(value, dict) and all(isinstance(key, (str, int)) for key in value):
        for item in value.values():
            require_plain(item, who)
        return
    raise CheckpointError(
        f"{who} holds a {type(value).__name__}; a state holds tensors, numbers, strings, None, and lists, tuples "
        "and dicts of these. Convert it before it is stored"
    )


def pack(value: Any, who: str) -> Any:
    """`value` as plain containers: TensorDicts are taken apart, what cannot be stored is refused.

    Raises:
        CheckpointError: if `value` holds something else than TensorDicts and plain data.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> td = TensorDict({"a": torch.ones(2)}, batch_size=[2])
        >>> unpack(pack(td, "a batch"))["a"]
        tensor([1., 1.])
    """
    if isinstance(value, TensorDictBase):
        lead = [1, *value.batch_size]
        data = value.unsqueeze(0)
        cells = [[key, pack(cell, who)] for key, cell in flatten(data, 1).items()]
        device = None if value.device is None else str(value.device)
        return {_TAG: "tensordict", "layout": Layout.of(data).state(), "cells": cells, "n": lead[0], "device": device}
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, (list, tuple)):
        return type(value)(pack(item, who) for item in value)
    if isinstance(value, dict):
        if not all(isinstance(key, (str, int)) for key in value) or _TAG in value:
            # Info of a draw is keyed by nested keys; they are kept as pairs.
            return {_TAG: "dict", "items": [[key, pack(item, who)] for key, item in value.items()]}
        return {key: pack(item, who) for key, item in value.items()}
    require_plain(value, who)
    return value


def unpack(value: Any) -> Any:
    """What `pack` was given."""
    if isinstance(value, dict):
        tag = value.get(_TAG)
        if tag == "tensordict":
            cells = {_key(key): unpack(cell) for key, cell in value["cells"]}
            return Layout.from_state(value["layout"]).build(cells, (1,), value["device"]).squeeze(0)
        if tag == "dict":
            return {_key(key): unpack(item) for key, item in value["items"]}
        return {key: unpack(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(unpack(item) for item in value)
    return value


def _key(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key
