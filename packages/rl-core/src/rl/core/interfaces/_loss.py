"""Losses and value estimators."""

from __future__ import annotations

from typing import Protocol

from tensordict import TensorDictBase

from rl.core.contract import Contract

__all__ = ["Estimator", "Loss"]


class Estimator(Protocol):
    """Adds ``advantage`` and ``value_target`` to a batch that is in time order."""

    contract: Contract

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase: ...


class Loss(Protocol):
    """Reads a batch, returns scalars: ``loss_*`` to be summed and minimized, and detached diagnostics."""

    contract: Contract

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase: ...
