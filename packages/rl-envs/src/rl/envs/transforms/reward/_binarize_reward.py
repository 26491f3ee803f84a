"""`BinarizeReward`: 1 for a positive reward, otherwise 0."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from rl.core.keys import NestedKey
from rl.core.specs import Bounded, TensorSpec
from rl.envs.transforms._base import Transform

__all__ = ["BinarizeReward"]


class BinarizeReward(Transform):
    """Replaces rewards by 1 where they are positive, and by 0 elsewhere, in the same dtype.

    Args:
        in_keys: rewards; ``reward`` if None.
        out_keys: results; `in_keys` if None.

    Example:
        >>> from rl.envs import GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), BinarizeReward())
        >>> env.rollout(2)["next", "reward"].flatten()
        tensor([1., 1.])
    """

    def __init__(self, in_keys: Iterable[NestedKey] | None = None, out_keys: Iterable[NestedKey] | None = None) -> None:
        super().__init__(["reward"] if in_keys is None else in_keys, out_keys)

    def _apply(self, value: Tensor) -> Tensor:
        return (value > 0).to(value.dtype)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return Bounded(0, 1, shape=spec.shape, dtype=spec.dtype, device=spec.device)
