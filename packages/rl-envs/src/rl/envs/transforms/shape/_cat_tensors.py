"""`CatTensors`: several observations as one vector."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rl.core.keys import NestedKey
from rl.envs.transforms._maps import from_the_end
from rl.envs.transforms.shape._joined import Joined

__all__ = ["CatTensors"]


class CatTensors(Joined):
    """Concatenates observations.

    Args:
        in_keys: entries of one dtype; all of the observation if None.
        out_key: the result.
        dim: dimension, negative.
        del_keys: remove the entries that were joined.
        unsqueeze_if_oor: give entries without that dimension one, so that a scalar is one element.
        sort: concatenate in the order of the sorted keys, otherwise as given.

    Raises:
        SpecError: if an entry is missing, the dtypes differ, or `dim` is not negative.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> cat = CatTensors(["th", "thdot"], "state", unsqueeze_if_oor=True, del_keys=False)
        >>> TransformedEnv(PendulumEnv(), cat).reset()["state"].shape
        torch.Size([2])
    """

    def __init__(
        self,
        in_keys: Iterable[NestedKey] | None = None,
        out_key: NestedKey = "observation_vector",
        dim: int = -1,
        *,
        del_keys: bool = True,
        unsqueeze_if_oor: bool = False,
        sort: bool = True,
    ) -> None:
        self.dim = from_the_end(dim, "CatTensors", "dim")
        self.unsqueeze_if_oor = unsqueeze_if_oor
        keys = None if in_keys is None else [in_keys] if isinstance(in_keys, str) else list(in_keys)
        if sort and keys is not None:
            keys.sort(key=str)
        super().__init__(keys, out_key, self._concatenate, del_keys=del_keys)

    def _concatenate(self, values: list[Tensor], batch_dims: int) -> Tensor:
        if self.unsqueeze_if_oor:
            values = [value.unsqueeze(-1) if value.ndim == batch_dims else value for value in values]
        return torch.cat(values, self.dim)
