"""`RewardClipping`: reward within an interval."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.core.specs import Bounded, TensorSpec
from rl.envs.transforms._base import Transform
from rl.envs.transforms._maps import mapped_spec

__all__ = ["RewardClipping"]


class RewardClipping(Transform):
    """Clips rewards to an interval.

    Args:
        clamp_min: smallest reward; no limit if None.
        clamp_max: largest reward; no limit if None.
        in_keys: rewards; ``reward`` if None.
        out_keys: results; `in_keys` if None.

    Raises:
        SpecError: if there is no limit, or `clamp_min` is above `clamp_max`.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(seed=0), RewardClipping(-1, 1))
        >>> env.rollout(5)["next", "reward"].min().item() >= -1
        True
    """

    def __init__(
        self,
        clamp_min: float | None = None,
        clamp_max: float | None = None,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
    ) -> None:
        super().__init__(["reward"] if in_keys is None else in_keys, out_keys)
        if (clamp_min is None and clamp_max is None) or (
            clamp_min is not None and clamp_max is not None and clamp_min > clamp_max
        ):
            raise SpecError(
                f"RewardClipping needs clamp_min, clamp_max or both, in this order; got {clamp_min} and {clamp_max}"
            )
        self.clamp_min, self.clamp_max = clamp_min, clamp_max

    def _apply(self, value: Tensor) -> Tensor:
        return value.clamp(self.clamp_min, self.clamp_max)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if isinstance(spec, Bounded) or self.clamp_min is None or self.clamp_max is None:
            return mapped_spec(spec, self._apply)
        return Bounded(self.clamp_min, self.clamp_max, shape=spec.shape, dtype=spec.dtype, device=spec.device)
