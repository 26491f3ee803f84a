"""`UnaryTransform`: a function applied to single entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.core.specs import TensorSpec, Unbounded
from rl.envs import _foreign
from rl.envs.transforms._base import Transform

__all__ = ["UnaryTransform"]


@_foreign.unary
class UnaryTransform(Transform):
    """Applies a function to each of its entries. Results have unbounded specs, whose shape a run on zeros shows.

    Args:
        in_keys: entries that it reads.
        out_keys: entries that it writes.
        in_keys_inv: entries of the environment's input that `inv_fn` writes.
        out_keys_inv: the caller's entries; `in_keys_inv` if None.
        fn: from tensor to tensor, with any batch in front.
        inv_fn: the same, for the inverse keys.

    Raises:
        SpecError: if there are keys without their function.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(), UnaryTransform(["observation"], ["square"], fn=lambda x: x * x))
        >>> env.observation_spec["square"].shape
        torch.Size([3])
    """

    def __init__(
        self,
        in_keys: Iterable[NestedKey],
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] = (),
        out_keys_inv: Iterable[NestedKey] | None = None,
        *,
        fn: Callable[[Any], Any] | None = None,
        inv_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        if (fn is None and self.in_keys) or (inv_fn is None and self.in_keys_inv):
            raise SpecError("UnaryTransform needs fn for in_keys, and inv_fn for in_keys_inv")
        self.fn, self.inv_fn = fn, inv_fn

    def _apply(self, value: Any) -> Any:
        assert self.fn is not None
        return self.fn(value)

    def _inverse(self, value: Any) -> Any:
        assert self.inv_fn is not None
        return self.inv_fn(value)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if self.fn is None:
            return spec
        example = self.fn(spec.zero())
        return Unbounded(example.shape, dtype=example.dtype, device=example.device)
