"""Random parts of sampled trajectories."""

from __future__ import annotations

from typing import Any, Final, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.contract import Key, missing_key_message
from rl.core.errors import ContractError, ShapeError
from rl.core.keys import NestedKey, key_str, leaf_keys, unwrap
from rl.replay._arguments import whole

__all__ = ["RandomCropTensorDict"]


@final
class RandomCropTensorDict:
    """Crops each sampled trajectory ``[*B, T]`` to `sub_seq_len` adjacent steps, which begin at a random one.

    Each element of ``[*B]`` gets a first step of its own, uniformly. Stored rows are not changed.

    Args:
        sub_seq_len: number of steps that are kept.
        sample_dim: dimension of steps, one of the batch.
        mask_key: bool ``[*B, T]`` or ``[*B, T, 1]``, true at steps and false at the padding after them: only steps are
            cropped. No mask if None.
        generator: source of randomness; the global one if None.

    Raises:
        ContractError: if `sub_seq_len` is not an integer of at least 1.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict(step=torch.arange(10).expand(3, 10), batch_size=[3, 10])
        >>> cropped = RandomCropTensorDict(4)(batch)
        >>> cropped.batch_size, cropped["step"].diff().unique().tolist()
        (torch.Size([3, 4]), [1])
    """

    def __init__(
        self,
        sub_seq_len: int,
        sample_dim: int = -1,
        mask_key: NestedKey | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        length = whole(sub_seq_len)
        if length is None:
            raise ContractError(
                f"RandomCropTensorDict: sub_seq_len must be an integer of at least 1, got {sub_seq_len!r}"
            )
        self.sub_seq_len: Final = length
        self.sample_dim: Final = sample_dim
        self.mask_key: Final = None if mask_key is None else unwrap(mask_key)
        self.generator: Final = generator

    def __call__(self, data: TensorDictBase) -> TensorDictBase:
        """The cropped sample ``[*B, sub_seq_len]``.

        Raises:
            ContractError: if the mask is absent.
            ShapeError: if a trajectory has fewer steps than `sub_seq_len`.
        """
        dims, length = data.ndim, self.sub_seq_len
        dim = self.sample_dim + dims if self.sample_dim < 0 else self.sample_dim
        if not 0 <= dim < dims:
            raise ShapeError(
                f"RandomCropTensorDict: sample_dim={self.sample_dim} is no dimension of a batch {list(data.batch_size)}"
            )
        lead = data.batch_size[:dim] + data.batch_size[dim + 1 :]
        steps = self._steps(data, dim)
        shortest = int(steps.min()) if steps.numel() else length
        if shortest < length:
            raise ShapeError(
                f"RandomCropTensorDict: a trajectory has {shortest} steps, fewer than sub_seq_len={length}: use a"
                " shorter crop, or sample longer trajectories"
            )
        device = "cpu" if self.generator is None else self.generator.device
        random = torch.rand(lead, dtype=torch.float64, generator=self.generator, device=device).to(steps.device)
        first = (random * (steps - length + 1)).long()
        index = (first.unsqueeze(dim) + _along(torch.arange(length, device=steps.device), dim, dims)).contiguous()

        def crop(entry: Tensor) -> Tensor:
            where = index.to(entry.device)
            where = where.reshape(*where.shape, *[1] * (entry.ndim - dims))
            return entry.gather(dim, where.expand(*where.shape[:dims], *entry.shape[dims:]))

        size = torch.Size([*data.batch_size[:dim], length, *data.batch_size[dim + 1 :]])
        cropped: Any = data.apply(crop, batch_size=size)
        return cropped

    def _steps(self, data: TensorDictBase, dim: int) -> Tensor:
        """Number of steps of each trajectory, int64 ``[*B]``."""
        lead = data.batch_size[:dim] + data.batch_size[dim + 1 :]
        if self.mask_key is None:
            return torch.full(lead, data.batch_size[dim], device="cpu")
        mask = data.get(self.mask_key, None)
        if mask is None:
            remedy = "Name the mask of the trajectories with mask_key=, or leave it out."
            raise ContractError(
                missing_key_message("RandomCropTensorDict", Key(self.mask_key, remedy=remedy), leaf_keys(data))
            )
        if mask.numel() != data.numel():
            raise ShapeError(
                f"RandomCropTensorDict: {key_str(self.mask_key)} is {list(mask.shape)}, expected one flag for each step"
                f" of {list(data.batch_size)}"
            )
        return mask.reshape(data.batch_size).sum(dim)

    def __repr__(self) -> str:
        return (
            f"RandomCropTensorDict(sub_seq_len={self.sub_seq_len}, sample_dim={self.sample_dim},"
            f" mask_key={self.mask_key!r})"
        )


def _along(values: Tensor, dim: int, dims: int) -> Tensor:
    """`values` ``[n]`` along dimension `dim` of `dims`."""
    return values.view(*[1] * dim, -1, *[1] * (dims - dim - 1))
