"""`Stack`: several observations of one shape along a new dimension."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rl.core.keys import NestedKey
from rl.envs.transforms._maps import from_the_end
from rl.envs.transforms.shape._joined import Joined

__all__ = ["Stack"]


class Stack(Joined):
    """Stacks observations of one shape and dtype along a new dimension.

    Args:
        in_keys: entries, in this order.
        out_key: the result.
        dim: the new dimension, negative.
        del_keys: remove the entries that were stacked.

    Raises:
        SpecError: if an entry is missing, the dtypes differ, or `dim` is not negative.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(), Stack(["th", "thdot"], "both", del_keys=False))
        >>> env.reset()["both"].shape
        torch.Size([2])
    """

    def __init__(
        self, in_keys: Iterable[NestedKey], out_key: NestedKey, dim: int = -1, *, del_keys: bool = True
    ) -> None:
        self.dim = from_the_end(dim, "Stack", "dim")
        super().__init__(in_keys, out_key, self._stacked, del_keys=del_keys)

    def _stacked(self, values: list[Tensor], batch_dims: int) -> Tensor:
        del batch_dims
        return torch.stack(values, self.dim)
