"""Composite actions, each part under its own key: log-probabilities and entropies are summed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.keys import NestedKey

__all__ = ["joint", "listed", "taken"]


def listed(keys: Any) -> list[NestedKey]:
    """A key, or a list of them, as a list.

    Example:
        >>> listed("action"), listed(["move", ("arm", "force")])
        (['action'], ['move', ('arm', 'force')])
    """
    return keys if isinstance(keys, list) else [keys]


def taken(entries: Mapping[NestedKey, Tensor], keys: Any, batch_size: torch.Size) -> Any:
    """The tensor under a key, or a TensorDict of those under a list of keys, as a composite distribution scores it.

    Args:
        entries: tensors by key.
        keys: a key or a list of keys.
        batch_size: of the batch.

    Example:
        >>> taken({"a": torch.ones(2), "b": torch.ones(2)}, ["a", "b"], torch.Size([2])).sorted_keys
        ['a', 'b']
    """
    if not isinstance(keys, list):
        return entries[keys]
    td = TensorDict({}, batch_size=batch_size)
    for key in listed(keys):
        td.set(key, entries[key])
    return td


def joint(found: Tensor | TensorDictBase) -> Tensor:
    """The log-probability or entropy of all actions together: the sum of those of each.

    Args:
        found: ``[*B]``, or a TensorDict of such tensors.

    Example:
        >>> joint(TensorDict(a_log_prob=torch.tensor([-1.0]), b_log_prob=torch.tensor([-2.0])))
        tensor([-3.])
    """
    if not isinstance(found, TensorDictBase):
        return found
    parts: list[Any] = list(found.values(include_nested=True, leaves_only=True))
    if len({part.shape for part in parts}) > 1:
        return torch.cat([part.reshape(*found.shape, -1) for part in parts], -1)  # the caller refuses the shape
    return torch.stack(parts).sum(0)
