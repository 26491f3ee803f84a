"""Batch sizes of groups: nested specs and TensorDicts that have dimensions which the outer ones do not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rl.core.keys import NestedKey, as_tuple, unwrap
from rl.core.specs._composite import Composite

__all__ = ["group_sizes", "set_group_sizes"]

Sizes = Mapping[NestedKey, torch.Size]


def group_sizes(specs: Iterable[Composite]) -> dict[NestedKey, torch.Size]:
    """Return the shapes of nested specs that are longer than the shape of the outermost one, by key.

    Args:
        specs: Specs of the same batch.

    Example:
        >>> from rl.core.specs import Unbounded
        >>> group_sizes([Composite(agents=Composite(reward=Unbounded((3, 1)), shape=(3,)))])
        {'agents': torch.Size([3])}
    """
    found: dict[NestedKey, torch.Size] = {}
    for spec in specs:
        for key in spec.keys(include_nested=True):
            inner = spec[key]
            if isinstance(inner, Composite) and len(inner.shape) > len(spec.shape):
                found[unwrap(as_tuple(key))] = inner.shape
    return found


def set_group_sizes(tensordict: TensorDictBase, sizes: Sizes, time: int | None = None) -> None:
    """Give groups that were assembled from leaves their batch sizes, in place.

    A group with an entry that has not these dimensions, which a policy may have written, stays as it is.

    Args:
        tensordict: Entries of the specs.
        sizes: Result of `group_sizes`.
        time: Dimension of `tensordict` that the specs do not have; None if there is none.

    Example:
        >>> from tensordict import TensorDict
        >>> steps = TensorDict({("agents", "reward"): torch.zeros(8, 3, 1)}, batch_size=[8])
        >>> set_group_sizes(steps, {"agents": torch.Size([3])}, time=0)
        >>> steps["agents"].batch_size
        torch.Size([8, 3])
    """
    for key, size in sizes.items():
        group = tensordict.get(key, None)
        wanted = size if time is None else torch.Size((*size[:time], tensordict.shape[time], *size[time:]))
        if isinstance(group, TensorDictBase) and all(leaf.shape[: len(wanted)] == wanted for leaf in _leaves(group)):
            names = [*tensordict.names, *[None] * (len(wanted) - tensordict.ndim)]
            group.batch_size = wanted
            if time is not None:
                group.names = names


def _leaves(group: TensorDictBase) -> Iterable[Any]:
    """The entries of a group, also of nested ones, that do not change their shape with it."""
    entries: Any = group.values(include_nested=True, leaves_only=True, is_leaf=_is_fixed)
    return entries


def _is_fixed(kind: type) -> bool:
    return not issubclass(kind, TensorDict)  # a lazy stack has the shape of its parts
