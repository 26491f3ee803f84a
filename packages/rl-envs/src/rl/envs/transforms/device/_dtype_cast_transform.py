"""`DTypeCastTransform`: entries in another dtype."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.keys import NestedKey
from rl.core.specs import TensorSpec
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["DTypeCastTransform"]


class DTypeCastTransform(Transform):
    """Converts entries from one dtype to another, and those that the environment reads back.

    Without any keys, every observation and reward of `dtype_in` is converted, and every action and state entry of
    `dtype_in` is taken in `dtype_out`.

    Args:
        dtype_in: dtype in the environment.
        dtype_out: dtype of the caller.
        in_keys: entries that the environment writes.
        out_keys: results; `in_keys` if None.
        in_keys_inv: entries that the environment reads.
        out_keys_inv: the caller's entries; `in_keys_inv` if None.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(), DTypeCastTransform(torch.float32, torch.float64, ["observation"]))
        >>> env.reset()["observation"].dtype
        torch.float64
    """

    def __init__(
        self,
        dtype_in: torch.dtype,
        dtype_out: torch.dtype,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] | None = None,
        out_keys_inv: Iterable[NestedKey] | None = None,
    ) -> None:
        self._every = in_keys is None and in_keys_inv is None
        super().__init__(in_keys or (), out_keys, in_keys_inv or (), out_keys_inv)
        self.dtype_in, self.dtype_out = dtype_in, dtype_out

    def _apply(self, value: Tensor) -> Tensor:
        return value.to(self.dtype_out)

    def _inverse(self, value: Tensor) -> Tensor:
        return value.to(self.dtype_in)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return spec.to(self.dtype_out)

    def has_inverse(self) -> bool:
        """Whether it maps what the environment reads."""
        return bool(self.in_keys_inv)

    def transform_specs(self, specs: Specs) -> None:
        """Choose the entries if no keys were given, and convert their specs."""
        if self._every:
            written = [(spec, key) for spec in (specs.observation, specs.reward) for key in leaf_keys(spec)]
            read = [(spec, key) for spec in (specs.action, specs.state) for key in leaf_keys(spec)]
            self.in_keys = [key for spec, key in written if spec[key].dtype == self.dtype_in]
            self.in_keys_inv = [key for spec, key in read if spec[key].dtype == self.dtype_in]
            self.out_keys, self.out_keys_inv = list(self.in_keys), list(self.in_keys_inv)
        super().transform_specs(specs)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Convert a collected batch; without any keys, every entry of `dtype_in`."""
        if not self._every:
            return super().forward(tensordict)
        out: Any = tensordict.apply(lambda one: one.to(self.dtype_out) if one.dtype == self.dtype_in else one)
        return out
