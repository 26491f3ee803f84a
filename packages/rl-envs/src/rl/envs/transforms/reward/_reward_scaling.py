"""`RewardScaling`: affine map of the reward."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rl.core.keys import NestedKey
from rl.core.specs import TensorSpec
from rl.envs.transforms._base import Transform
from rl.envs.transforms._maps import mapped_spec

__all__ = ["RewardScaling"]


class RewardScaling(Transform):
    """Affine map of rewards: ``reward * scale + loc``, or ``(reward - loc) / scale`` if `standard_normal`.

    Args:
        loc: number or tensor.
        scale: number or tensor.
        in_keys: rewards; ``reward`` if None.
        out_keys: results; `in_keys` if None.
        standard_normal: which of the two maps.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(seed=0), RewardScaling(loc=8.0, scale=0.1))
        >>> bool((env.rollout(3)["next", "reward"] > 6).all())
        True
    """

    def __init__(
        self,
        loc: float | Tensor,
        scale: float | Tensor,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        *,
        standard_normal: bool = False,
    ) -> None:
        super().__init__(["reward"] if in_keys is None else in_keys, out_keys)
        self.loc, self.scale = torch.as_tensor(loc), torch.as_tensor(scale)
        self.standard_normal = standard_normal

    def _apply(self, value: Tensor) -> Tensor:
        loc, scale = self.loc.to(value), self.scale.to(value)
        return (value - loc) / scale if self.standard_normal else value * scale + loc

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return mapped_spec(spec, self._apply)
