"""A data set and new experience in one buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from rl.core.arguments import as_integer, as_number
from rl.core.errors import ArgumentError
from rl.core.interfaces import Storage
from rl.replay._arguments import completed
from rl.replay.buffers._base import ReplayBuffer
from rl.replay.buffers._ensemble import ReplayBufferEnsemble
from rl.replay.buffers._tensordict import TensorDictReplayBuffer
from rl.replay.datasets._base import load_dataset
from rl.replay.samplers._base import SamplerBase
from rl.replay.storages._rows import TensorStorageBase
from rl.replay.storages._tensor import LazyTensorStorage


@final
class OfflineToOnlineReplayBuffer(ReplayBufferEnsemble):
    """Batches of a data set and of new experience, in a fraction that may be annealed.

    A batch of n rows has ``round(offline_fraction * n)`` rows of the data set and the rest of the online buffer, in
    this order; all are of the data set while nothing was written. A data set with a slice sampler adds the nearest
    multiple of ``slice_len`` (or ``num_slices``). `extend` writes to the online buffer alone. The numbering of
    ``index`` has the data set first; `extend` returns indices in it.

    `state_dict` and `dumps` have the online buffer and not the data set: construct the buffer with the same one.

    Args:
        offline_dataset: Buffer, or the id of a data set for `rl.replay.datasets.load_dataset`.
        online_storage: Storage of the new experience, in place of `online_capacity`.
        online_capacity: Capacity of a `LazyTensorStorage` for the new experience.
        offline_fraction: Part of a batch that is taken from the data set, in [0, 1]; may be set.
        batch_size: Argument of `ReplayBuffer`.
        transform: Argument of `ReplayBuffer`; called on joined batches.
        prefetch: Argument of `ReplayBuffer`.
        pin_memory: Argument of `ReplayBuffer`.
        generator: Argument of `ReplayBuffer`.
        dataset_kwargs: Further arguments of `load_dataset`.

    Raises:
        ArgumentError: If an argument is out of its range, or not exactly one online argument is given.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.replay import LinearScheduler
        >>> old = TensorDictReplayBuffer(storage=LazyTensorStorage(100))
        >>> _ = old.extend(TensorDict(x=torch.zeros(100), batch_size=[100]))
        >>> buffer = OfflineToOnlineReplayBuffer(old, online_capacity=50, offline_fraction=0.75, batch_size=4)
        >>> _ = buffer.extend(TensorDict(x=torch.ones(10), batch_size=[10]))
        >>> buffer.sample()["x"].tolist()
        [0.0, 0.0, 0.0, 1.0]
        >>> schedule = LinearScheduler(buffer, "offline_fraction", final_value=0.0, num_steps=1000)
    """

    def __init__(
        self,
        offline_dataset: ReplayBuffer | str,
        *,
        online_storage: Storage | None = None,
        online_capacity: int | None = None,
        offline_fraction: float = 0.5,
        batch_size: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        prefetch: int | None = None,
        pin_memory: bool = False,
        generator: torch.Generator | None = None,
        **dataset_kwargs: Any,
    ) -> None:
        owner = type(self).__name__
        if (online_storage is None) == (online_capacity is None):
            raise ArgumentError(f"{owner}: pass exactly one of online_storage and online_capacity")
        offline = _open_dataset(owner, offline_dataset, batch_size, dataset_kwargs)
        self.offline_fraction = offline_fraction
        self._first_fraction = self.offline_fraction
        storage = LazyTensorStorage(online_capacity or 1) if online_storage is None else online_storage
        kind = TensorDictReplayBuffer if isinstance(offline, TensorDictReplayBuffer) else ReplayBuffer
        super().__init__(
            offline,
            kind(storage=storage),
            batch_size=batch_size,
            transform=transform,
            prefetch=prefetch,
            pin_memory=pin_memory,
            generator=generator,
        )

    @property
    def offline_buffer(self) -> ReplayBuffer:
        """The data set."""
        return self.buffers[0]

    @property
    def online_buffer(self) -> ReplayBuffer:
        """The new experience."""
        return self.buffers[1]

    @property
    def offline_fraction(self) -> float:
        """Part of a batch that is taken from the data set; may be set."""
        return self._fraction

    @offline_fraction.setter
    def offline_fraction(self, value: float) -> None:
        self._fraction = as_number(value, type(self).__name__, "offline_fraction", least=0, most=1)

    @property
    def write_count(self) -> int:
        """Number of rows written to the online buffer."""
        return self.online_buffer.write_count

    def anneal(self, step: int, total_steps: int) -> None:
        """Set the fraction to the initial one times ``1 - step / total_steps``, at least 0."""
        as_integer(step, type(self).__name__, "step", 0)
        as_integer(total_steps, type(self).__name__, "total_steps", 1)
        self.offline_fraction = self._first_fraction * max(0.0, 1 - step / total_steps)

    def empty(self) -> None:
        """Remove the rows of the online buffer."""
        with self._lock:
            self.online_buffer.empty()
            self._flight.clear()
            self._transforms.empty()

    @property
    def _saved(self) -> Sequence[ReplayBuffer]:
        return self.buffers[1:]

    def _write(self, data: Any) -> Tensor:
        index = self.online_buffer.extend(data)
        return torch.where(index < 0, index, index + self._members.offsets[1])

    def _counts(self, size: int, generator: torch.Generator | None) -> list[int]:  # noqa: ARG002  the split is fixed
        if not len(self.online_buffer):
            return [size, 0]
        unit = completed(self.offline_buffer.sampler, SamplerBase).batch_multiple
        old = unit * min(round(self._fraction * size / unit), size // unit)
        return [old, size - old]


def prefill_replay_buffer(
    rb: ReplayBuffer, dataset: ReplayBuffer | str, n_samples: int | None = None, chunk_size: int = 1000
) -> ReplayBuffer:
    """Copy the first rows of a data set into a buffer, without transforms of the data set; returns the buffer.

    A storage of `rb` with ``ndim=2`` gets the rows as steps of one environment. Rows of a data set with ``ndim=2``
    alternate between its environments: slices of the copy need trajectory ids and a data set of one environment.

    Args:
        rb: Buffer that is written.
        dataset: Buffer, or the id of a data set for `rl.replay.datasets.load_dataset`.
        n_samples: Number of rows; all if None, or if there are fewer.
        chunk_size: Number of rows that are copied at a time.

    Raises:
        ArgumentError: If a number is below 1.

    Example:
        >>> from rl.replay import LazyTensorStorage, TensorStorage
        >>> data = ReplayBuffer(storage=TensorStorage(torch.arange(500)))
        >>> len(prefill_replay_buffer(ReplayBuffer(storage=LazyTensorStorage(1000)), data, n_samples=200))
        200
    """
    owner = "prefill_replay_buffer"
    chunk_size = as_integer(chunk_size, owner, "chunk_size", 1)
    wanted = None if n_samples is None else as_integer(n_samples, owner, "n_samples", 1)
    source = _open_dataset(owner, dataset, chunk_size, {})
    rows = len(source) if wanted is None else min(wanted, len(source))
    for start in range(0, rows, chunk_size):
        stop = min(start + chunk_size, rows)
        part, storage = source[start:stop], rb.storage
        if isinstance(storage, TensorStorageBase) and storage.ndim > 1:
            part = storage.as_batch(part, stop - start)
        rb.extend(part)
    return rb


def _open_dataset(owner: str, dataset: Any, batch_size: int | None, options: dict[str, Any]) -> ReplayBuffer:
    """Return the buffer of a data set.

    Raises:
        ArgumentError: If it is neither a buffer nor an id.
    """
    if isinstance(dataset, str):
        return load_dataset(dataset, batch_size=batch_size or 1, **options)
    if not isinstance(dataset, ReplayBuffer) or options:
        raise ArgumentError(
            f"{owner}: the data set is a buffer or an id such as 'minari:...', and only an id has further arguments;"
            f" got {type(dataset).__name__} and {sorted(options)}"
        )
    return dataset
