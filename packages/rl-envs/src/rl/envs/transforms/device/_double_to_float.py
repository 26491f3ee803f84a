"""`DoubleToFloat`: float64 entries as float32."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from rl.core.keys import NestedKey
from rl.envs.transforms.device._dtype_cast_transform import DTypeCastTransform

__all__ = ["DoubleToFloat"]


class DoubleToFloat(DTypeCastTransform):
    """Converts float64 entries to float32, and actions that the environment reads back to float64.

    Without any keys, this holds for all float64 entries of the environment.

    Args:
        in_keys: entries that the environment writes.
        out_keys: results; `in_keys` if None.
        in_keys_inv: entries that the environment reads.
        out_keys_inv: the caller's entries; `in_keys_inv` if None.

    Example:
        >>> from rl.envs import CartPoleEnv, TransformedEnv
        >>> env = TransformedEnv(CartPoleEnv(dtype=torch.float64), DoubleToFloat(["state"], ["state32"]))
        >>> env.rollout(2)["state32"].dtype
        torch.float32
    """

    def __init__(
        self,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] | None = None,
        out_keys_inv: Iterable[NestedKey] | None = None,
    ) -> None:
        super().__init__(torch.float64, torch.float32, in_keys, out_keys, in_keys_inv, out_keys_inv)
