"""Samplers of several storages as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, final

import torch
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.errors import ArgumentError, ContractError
from rl.core.interfaces import Sampler, Storage
from rl.replay._arguments import completed, overrides
from rl.replay._state import StatefulGroup
from rl.replay.samplers._base import SamplerBase
from rl.replay.storages._ensemble import StorageEnsemble

BUFFER_IDS = "buffer_ids"


@final
class SamplerEnsemble(StatefulGroup, SamplerBase):
    """Selects which members of an ensemble give how many rows of a batch; the k-th sampler samples the k-th storage.

    Without options each row comes from a member selected with probability `p`; with slice samplers each part of
    ``slice_len`` (or ``num_slices``) rows does, so that a member contributes complete slices. The info of a sample has
    ``buffer_ids``, int64 ``[n]``: the member of each row; ``index`` is that of `StorageEnsemble`.

    Args:
        samplers: Samplers, one for each storage.
        p: Probability of each member, at least 0, of any sum; equal ones if None.
        sample_from_all: Whether to take equally many rows of each member; not together with `p`.
        num_buffer_sampled: Number of members that are selected with probability `p`, with replacement, and take equally
            many rows of each.

    Raises:
        ArgumentError: If an argument is out of its range.

    Example:
        >>> from rl.replay.samplers import RandomSampler
        >>> from rl.replay.storages import TensorStorage
        >>> storage = StorageEnsemble(TensorStorage(torch.arange(100)), TensorStorage(torch.arange(100)))
        >>> sampler = SamplerEnsemble(RandomSampler(), RandomSampler(), p=[0.0, 1.0])
        >>> index, info = sampler.sample(storage, 4)
        >>> bool((index >= 100).all()), info["buffer_ids"].tolist()
        (True, [1, 1, 1, 1])
    """

    _members_as = "samplers"

    def __init__(
        self,
        *samplers: Sampler,
        p: Sequence[float] | Tensor | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
    ) -> None:
        owner = "SamplerEnsemble"
        if not samplers or len({id(one) for one in samplers}) < len(samplers):
            raise ArgumentError(f"{owner}: pass one or several different samplers, got {len(samplers)}")
        self.samplers: Final = samplers
        given = torch.ones(len(samplers), dtype=torch.float64) if p is None else torch.as_tensor(p, dtype=torch.float64)
        if given.shape != (len(samplers),) or not bool(given.isfinite().all() & (given >= 0).all() & (given.sum() > 0)):
            raise ArgumentError(
                f"{owner}: p has one probability for each of {len(samplers)} members, at least 0 and not all 0, got {p}"
            )
        if sample_from_all and (p is not None or num_buffer_sampled is not None):
            raise ArgumentError(
                f"{owner}: sample_from_all takes equally many rows of each member; leave out the others"
            )
        if num_buffer_sampled is not None:
            num_buffer_sampled = as_integer(num_buffer_sampled, owner, "num_buffer_sampled", 1)
        self._completed: Final = [completed(one, SamplerBase) for one in samplers]
        needs = {one.batch_multiple for one in self._completed}
        if len(needs - {1}) > 1 and not sample_from_all and num_buffer_sampled is None:
            parts = " and ".join(map(str, sorted(needs - {1})))
            raise ArgumentError(
                f"{owner}: members sample multiples of {parts} rows, so that a batch has no common part to"
                " select a member for; give all slice samplers the same slice_len, or use sample_from_all=True or"
                " num_buffer_sampled=..."
            )
        self._unit: Final = math.lcm(*needs)  # rows that are of one member
        self.p: Final = given / given.sum()
        self.sample_from_all: Final = sample_from_all
        self.num_buffer_sampled: Final = num_buffer_sampled
        self._storage: StorageEnsemble | None = None

    def split(self, batch_size: int, generator: torch.Generator | None = None) -> list[int]:
        """Rows of a batch that each member contributes.

        Raises:
            ArgumentError: If `batch_size` is below 1, or cannot be divided equally.
        """
        batch_size = as_integer(batch_size, "SamplerEnsemble", "batch_size", 1)
        members, unit = len(self.samplers), self._unit
        groups = members if self.sample_from_all else self.num_buffer_sampled
        step = unit * (groups or 1)
        if batch_size % step:
            reasons = [f"{groups} members give equally many rows"] if groups else []
            reasons += [f"slice samplers give multiples of {unit} rows"] if unit > 1 else []
            raise ArgumentError(
                f"SamplerEnsemble: batch_size={batch_size} is not a multiple of {step}: {' and '.join(reasons)}. Use"
                f" {max(batch_size // step, 1) * step}, for example"
            )
        rows = batch_size // groups if groups else unit
        if self.sample_from_all:
            return [rows] * members
        device = "cpu" if generator is None else generator.device
        chosen = torch.multinomial(self.p.to(device), batch_size // rows, replacement=True, generator=generator)
        return [count * rows for count in chosen.bincount(minlength=members).tolist()]

    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sample indices int64 ``[n]``, one member after the other; see `StorageEnsemble`.

        Raises:
            ContractError: If a selected member is empty, or sets entries of its samples, as slice samplers do.
        """
        if not isinstance(storage, StorageEnsemble):
            raise ArgumentError(f"SamplerEnsemble samples a StorageEnsemble, got a {type(storage).__name__}")
        parts: list[tuple[int, Tensor, dict[Any, Any]]] = []
        for number, count in enumerate(self.split(batch_size, generator)):
            sampler = self._completed[number]
            if overrides(sampler, SamplerBase, "postprocess"):
                raise ContractError(
                    f"SamplerEnsemble: a {type(self.samplers[number]).__name__} sets entries of its samples: use"
                    " ReplayBufferEnsemble(*buffers), whose members sample for themselves"
                )
            if count:
                index, info = sampler.sample(storage.storages[number], count, generator=generator)
                parts.append((number, index, info))
        return merged(storage, parts)

    def attach(self, storage: Storage) -> None:
        """Let each sampler know its storage.

        Raises:
            ArgumentError: If `storage` is no `StorageEnsemble` of as many storages.
        """
        if not isinstance(storage, StorageEnsemble) or len(storage.storages) != len(self.samplers):
            raise ArgumentError(f"SamplerEnsemble: expected a StorageEnsemble of {len(self.samplers)}, got {storage!r}")
        self._storage = storage
        for sampler, one in zip(self._completed, storage.storages, strict=True):
            sampler.attach(one)

    def update_priority(self, index: Tensor, priority: Tensor) -> None:
        """Set the priorities ``[n]`` of rows ``[n]``.

        Raises:
            ContractError: If the sampler of a member has no priorities.
        """
        if self._storage is None:
            raise ContractError("SamplerEnsemble: no storage is attached, so that the members of rows are unknown")
        for number, positions, local in self._storage.locate(index.reshape(-1)):
            self.samplers[number].update_priority(local, priority[positions.to(priority.device)])

    def restart(self) -> None:
        """Begin a new pass of each member."""
        for sampler in self.samplers:
            sampler.restart()

    def empty(self) -> None:
        """Forget all rows."""
        for sampler in self.samplers:
            sampler.empty()

    def __repr__(self) -> str:
        return f"SamplerEnsemble({', '.join(map(repr, self.samplers))}, p={[round(p, 4) for p in self.p.tolist()]})"


def merged(
    storage: StorageEnsemble, parts: Sequence[tuple[int, Tensor, dict[Any, Any]]]
) -> tuple[Tensor, dict[Any, Any]]:
    """Index and info of a sample of several members: the entries of the info that all have."""
    index = torch.cat([index.reshape(-1).cpu() + storage.offsets[number] for number, index, _ in parts])
    common = [key for key in parts[0][2] if all(isinstance(info.get(key), Tensor) for *_, info in parts)]
    info: dict[Any, Any] = {key: torch.cat([part[key].cpu() for *_, part in parts]) for key in common if key != "index"}
    numbers = [torch.full((index.numel(),), number, device="cpu") for number, index, _ in parts]
    return index, {**info, BUFFER_IDS: torch.cat(numbers)}
