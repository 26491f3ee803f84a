"""Policies and modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tensordict import TensorDictBase
from torch import Tensor

from rl.core.keys import NestedKey

__all__ = ["LoweredModule", "Policy"]


class LoweredModule(Protocol):
    """A module as a plain call: the leaves under `in_keys` in order, to those under `out_keys` in order."""

    @property
    def in_keys(self) -> Sequence[NestedKey]: ...
    @property
    def out_keys(self) -> Sequence[NestedKey]: ...
    def __call__(self, *leaves: Tensor) -> tuple[Tensor, ...]: ...


class Policy(Protocol):
    """Reads observations, writes actions, in place."""

    @property
    def in_keys(self) -> Sequence[NestedKey]: ...
    @property
    def out_keys(self) -> Sequence[NestedKey]: ...
    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase: ...
