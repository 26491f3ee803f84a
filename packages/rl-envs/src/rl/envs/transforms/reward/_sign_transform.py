"""`SignTransform`: -1, 0 or 1 for the sign of an entry."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from rl.core.keys import NestedKey
from rl.core.specs import Bounded, TensorSpec
from rl.envs.transforms._base import Transform

__all__ = ["SignTransform"]


class SignTransform(Transform):
    """Replaces entries by their sign: -1, 0 or 1.

    Args:
        in_keys: entries, for example ``["reward"]``.
        out_keys: results; `in_keys` if None.
        in_keys_inv: entries of the environment's input that are replaced by the sign of the caller's.
        out_keys_inv: the caller's entries; `in_keys_inv` if None.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> TransformedEnv(PendulumEnv(seed=0), SignTransform(["reward"])).rollout(2)["next", "reward"].flatten()
        tensor([-1., -1.])
    """

    def __init__(
        self,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] = (),
        out_keys_inv: Iterable[NestedKey] | None = None,
    ) -> None:
        super().__init__(["reward"] if in_keys is None else in_keys, out_keys, in_keys_inv, out_keys_inv)

    def _apply(self, value: Tensor) -> Tensor:
        return value.sign()

    _inverse = _apply

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return Bounded(-1, 1, shape=spec.shape, dtype=spec.dtype, device=spec.device)
