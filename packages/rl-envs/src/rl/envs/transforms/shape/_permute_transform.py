"""`PermuteTransform`: permutes the last dimensions."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.core.specs import TensorSpec
from rl.envs.transforms._base import Transform
from rl.envs.transforms._maps import from_the_end, mapped_spec

__all__ = ["PermuteTransform"]


class PermuteTransform(Transform):
    """Permutes the last dimensions.

    Dimensions are negative, counted from the last one, so that a batch of any shape may come in front.

    Args:
        dims: the last dimensions in their new order, for example ``[-1, -3, -2]`` for HWC to CHW.
        in_keys: entries that it reads; ``observation`` if None and there are no inverse keys.
        out_keys: results; `in_keys` if None.
        in_keys_inv: entries of the environment's input that get the caller's with the inverse operation.
        out_keys_inv: the caller's entries; `in_keys_inv` if None.

    Raises:
        SpecError: if a dimension is not negative.

    Example:
        >>> from rl.core.specs import Unbounded
        >>> PermuteTransform([-1, -3, -2], in_keys=["pixels"])._transform_spec(Unbounded((84, 96, 3))).shape
        torch.Size([3, 84, 96])
    """

    def __init__(
        self,
        dims: Iterable[int],
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] = (),
        out_keys_inv: Iterable[NestedKey] | None = None,
    ) -> None:
        reads = list(in_keys_inv)
        default = [] if reads else ["observation"]
        super().__init__(default if in_keys is None else in_keys, out_keys, reads, out_keys_inv)
        self.dims = [from_the_end(dim, "PermuteTransform", "dims") for dim in dims]
        if sorted(self.dims) != list(range(-len(self.dims), 0)):
            raise SpecError(f"PermuteTransform: dims must be the last dimensions in another order, got {self.dims}")
        self._back = [self.dims.index(dim) - len(self.dims) for dim in range(-len(self.dims), 0)]

    def _apply(self, value: Tensor) -> Tensor:
        return value.permute(*range(value.ndim - len(self.dims)), *self.dims)

    def _inverse(self, value: Tensor) -> Tensor:
        return value.permute(*range(value.ndim - len(self.dims)), *self._back)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return mapped_spec(spec, self._apply)
