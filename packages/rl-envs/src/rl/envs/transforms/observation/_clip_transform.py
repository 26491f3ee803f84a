"""`ClipTransform`: entries within an interval."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.core.specs import Bounded, TensorSpec
from rl.envs.transforms._base import Transform
from rl.envs.transforms._maps import mapped_spec

__all__ = ["ClipTransform"]


class ClipTransform(Transform):
    """Clips entries to an interval.

    Args:
        in_keys: entries that it reads.
        out_keys: results; `in_keys` if None.
        in_keys_inv: entries of the environment's input that get the clipped entries of the caller.
        out_keys_inv: the caller's entries; `in_keys_inv` if None.
        low: smallest value; no limit if None.
        high: largest value; no limit if None.

    Raises:
        SpecError: if there is no limit, or `low` is above `high`.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(seed=0), ClipTransform(["observation"], low=0.0, high=1.0))
        >>> env.rollout(5)["observation"].min().item() >= 0
        True
    """

    def __init__(
        self,
        in_keys: Iterable[NestedKey] = (),
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] = (),
        out_keys_inv: Iterable[NestedKey] | None = None,
        *,
        low: float | Tensor | None = None,
        high: float | Tensor | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        none = low is None and high is None
        if none or (low is not None and high is not None and bool(torch.as_tensor(low > high).any())):
            raise SpecError(f"ClipTransform needs low, high or both, in this order; got {low} and {high}")
        self.low, self.high = low, high

    def _apply(self, value: Tensor) -> Tensor:
        return value.clamp(self.low, self.high)  # pyright: ignore[reportCallIssue, reportArgumentType]

    _inverse = _apply

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if isinstance(spec, Bounded) or self.low is None or self.high is None:
            return mapped_spec(spec, self._apply)
        return Bounded(self.low, self.high, shape=spec.shape, dtype=spec.dtype, device=spec.device)
