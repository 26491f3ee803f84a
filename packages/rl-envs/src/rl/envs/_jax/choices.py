"""Actions of simulators in JAX: choices as one-hot vectors or integers, and intervals."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl.core.specs import Bounded, Categorical, MultiCategorical, MultiOneHot, OneHot
from rl.envs._jax.env import Action

__all__ = ["choice", "choices", "interval"]


def choice(count: int, *, categorical: bool) -> Action:
    """One of `count` numbers."""
    if categorical:
        return Action(Categorical(count), _int32)
    return Action(OneHot(count, dtype=torch.int64), lambda tensor: _int32(tensor.argmax(-1)))


def choices(counts: Sequence[int], *, categorical: bool) -> Action:
    """One of some numbers each."""
    if categorical:
        return Action(MultiCategorical(torch.tensor(counts)), _int32)

    def decode(tensor: Tensor) -> Tensor:
        return torch.stack([_int32(part.argmax(-1)) for part in tensor.split(list(counts), dim=-1)], -1)

    return Action(MultiOneHot(list(counts), dtype=torch.int64), decode)


def interval(low: Tensor, high: Tensor) -> Action:
    """Numbers between bounds, float32."""
    return Action(Bounded(low, high, shape=low.shape, dtype=torch.float32))


def _int32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.int32)
