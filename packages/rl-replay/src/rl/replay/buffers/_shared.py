"""A buffer that several processes use: its parts, and the counters that it exchanges with them."""

from __future__ import annotations

from typing import Any

from rl.core.errors import ContractError
from rl.core.interfaces import Sampler, Storage
from rl.replay.samplers._random import RandomSampler
from rl.replay.storages._file_rows import FileRows
from rl.replay.writers._round_robin import RoundRobinWriter

__all__ = ["pull", "push", "shared_storage"]

_CURSOR, _WRITTEN = 5, 6  # of the counters, see `RowFiles`


def shared_storage(owner: str, storage: Storage, sampler: Sampler, writer: Any, *, unit: bool) -> FileRows:
    """The storage of a shared buffer.

    Raises:
        ContractError: if a part keeps what other processes would have to know.
        BackendError: if the storage is on another device.
    """
    share = getattr(storage, "share", None)
    if share is None:
        raise ContractError(
            f"{owner}: shared=True takes a LazyTensorStorage or LazyMemmapStorage, got {type(storage).__name__}"
        )
    if type(sampler) is not RandomSampler or unit:
        name = "a sample unit" if unit else type(sampler).__name__
        raise ContractError(
            f"{owner}: shared=True takes a RandomSampler; {name} does not see what other processes write. Let"
            " these send their batches to the process that samples"
        )
    if type(writer) is not RoundRobinWriter or writer.tracks_generations:
        raise ContractError(f"{owner}: shared=True takes a RoundRobinWriter without generations, got {writer!r}")
    return share()


def pull(storage: FileRows, writer: RoundRobinWriter) -> int:
    """Take over what other processes wrote; returns the number of written rows."""
    storage.refresh()
    counters = storage.files.counters
    writer.move(None if counters[_CURSOR] < 0 else counters[_CURSOR])
    return counters[_WRITTEN]


def push(storage: FileRows, writer: RoundRobinWriter, written: int) -> None:
    """Tell other processes where the next row goes."""
    counters, cursor = storage.files.counters, writer.position
    counters[_CURSOR], counters[_WRITTEN] = -1 if cursor is None else cursor, written
