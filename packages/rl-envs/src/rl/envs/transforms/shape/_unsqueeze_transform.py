"""`UnsqueezeTransform`: inserts a dimension of size 1."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from rl.core.keys import NestedKey
from rl.core.specs import TensorSpec
from rl.envs import _foreign
from rl.envs.transforms._base import Transform
from rl.envs.transforms._maps import after_batch, from_the_end, mapped_spec

__all__ = ["UnsqueezeTransform"]


@_foreign.unsqueeze
class UnsqueezeTransform(Transform):
    """Inserts a dimension of size 1.

    Dimensions are negative, counted from the last one, so that a batch of any shape may come in front, unless
    `allow_positive_dim` is true.

    Args:
        dim: where, of the result.
        in_keys: entries that it reads; ``observation`` if None and there are no inverse keys.
        out_keys: results; `in_keys` if None.
        in_keys_inv: entries of the environment's input that get the caller's with the inverse operation.
        out_keys_inv: the caller's entries; `in_keys_inv` if None.
        allow_positive_dim: Whether dimensions may be counted from the first one after the batch of the environment;
            without an environment from the first one of the whole tensor.

    Raises:
        SpecError: if a dimension is not negative and `allow_positive_dim` is false.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> TransformedEnv(PendulumEnv(), UnsqueezeTransform(-2)).reset()["observation"].shape
        torch.Size([1, 3])
    """

    def __init__(
        self,
        dim: int,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] = (),
        out_keys_inv: Iterable[NestedKey] | None = None,
        *,
        allow_positive_dim: bool = False,
    ) -> None:
        reads = list(in_keys_inv)
        default = [] if reads else ["observation"]
        super().__init__(default if in_keys is None else in_keys, out_keys, reads, out_keys_inv)
        self.dim = from_the_end(dim, "UnsqueezeTransform", "dim", allow_positive_dim=allow_positive_dim)

    def _apply(self, value: Tensor) -> Tensor:
        return value.unsqueeze(after_batch(self.dim, self.parent))

    def _inverse(self, value: Tensor) -> Tensor:
        return value.squeeze(after_batch(self.dim, self.parent))

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return mapped_spec(spec, lambda value: value.unsqueeze(self.dim))
