"""Collation of a list of rows into a batch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypedDict

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ArgumentError, CheckpointError, ContractError, ShapeError, SpecError
from rl.core.interfaces import Sampler, Storage, Writer
from rl.core.keys import NestedKey, key_str, unwrap
from rl.replay._arguments import overrides
from rl.replay._kinds import is_batched
from rl.replay._state import Fields, StatefulGroup, twin_of
from rl.replay.sample_units import SampleUnit, Transition
from rl.replay.samplers._base import SamplerBase
from rl.replay.samplers._uniform import RandomSampler
from rl.replay.storages._memmap import MemmapStorageBase
from rl.replay.storages._rows import TensorStorageBase
from rl.replay.writers import RoundRobinWriter


def collate(rows: Any) -> Any:
    """Stack a list of TensorDicts, tensorclasses or tensors ``[...]`` to ``[n, ...]``, and return anything else.

    Raises:
        ShapeError: If the rows cannot be stacked.

    Example:
        >>> collate([torch.zeros(3), torch.ones(3)]).shape, collate(["left", "right"])
        (torch.Size([2, 3]), ['left', 'right'])
    """
    if not isinstance(rows, list) or not rows:
        return rows
    if not all(is_batched(row) for row in rows):
        return rows
    try:
        return torch.stack(rows)
    except (RuntimeError, KeyError, ValueError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise ShapeError(
            f"these {len(rows)} rows differ and cannot be stacked ({reason}): give the buffer a collate_fn that "
            "builds a batch of a list of rows"
        ) from error


class _Stage(NamedTuple):
    transform: Any
    invert: bool

    @property
    def name(self) -> str:
        return getattr(self.transform, "__name__", type(self.transform).__name__)

    @property
    def inverse(self) -> Callable[[Any], Any] | None:
        """The method ``inv``; None if the transform has none, or its `has_inverse` is false."""
        found = getattr(self.transform, "inv", None)
        return found if found is not None and getattr(self.transform, "has_inverse", _yes)() else None

    @property
    def read(self) -> Callable[[Any], Any] | None:
        """Maps samples."""
        return self.inverse if self.invert else self.transform

    @property
    def write(self) -> Callable[[Any], Any] | None:
        """Maps batches that are written."""
        return self.transform if self.invert else self.inverse


def _yes() -> bool:
    return True


class Transforms:
    """Chain of transforms, see `rl.core.interfaces.Transform`; the first is nearest to the storage.

    Args:
        owner: Buffer, for messages.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._stages: list[_Stage] = []

    def __len__(self) -> int:
        return len(self._stages)

    def __repr__(self) -> str:
        return ", ".join(repr(stage.transform) for stage in self._stages)

    def append(self, transform: Any, *, invert: bool) -> None:
        """Append a transform; `invert` exchanges its two directions."""
        self._stages.append(_Stage(transform, invert))

    def read(self, data: Any) -> Any:
        """Return the transformed sample."""
        for stage in self._stages:
            if (read := stage.read) is not None:
                data = read(data)
        return data

    @property
    def writes(self) -> bool:
        """Whether rows are transformed before they are written."""
        return bool(self._stages) and any(stage.write is not None for stage in self._stages)

    def write(self, data: Any) -> Any | None:
        """Return the rows to write, from the last transform to the first; None if there are none.

        Raises:
            ContractError: If `data` is a list of rows.
        """
        if isinstance(data, list):
            names = ", ".join(stage.name for stage in self._stages if stage.write is not None)
            raise ContractError(
                f"{self._owner}: {names} transforms written batches, and got a list of rows: write one TensorDict,"
                " torch.stack(rows)"
            )
        if isinstance(data, TensorDictBase):
            data = data.copy()  # a function may set entries
        for stage in reversed(self._stages):
            if (write := stage.write) is not None:
                data = write(data)
                if data is None or (isinstance(data, TensorDictBase) and 0 in data.batch_size):
                    return None
        return data

    def empty(self) -> None:
        """Discard the rows that transforms hold back."""
        for stage in self._stages:
            if (empty := getattr(stage.transform, "empty", None)) is not None:
                empty()

    def state_dict(self) -> list[Any]:
        """Pairs of the name and the state of each transform that has both directions and a state."""
        return [[stage.name, stage.transform.state_dict()] for stage in self._stateful()]

    def load_state_dict(self, state: Any) -> None:
        """Continue from `state`.

        Raises:
            CheckpointError: If it is of other transforms.
        """
        own, stages = [stage.name for stage in self._stateful()], list(self._stateful())
        if not isinstance(state, list) or [name for name, _ in state] != own:
            raise CheckpointError(
                f"{self._owner}: its transforms with a state are {own}, the state has other ones: append the same ones"
            )
        for stage, (_, part) in zip(stages, state, strict=True):
            stage.transform.load_state_dict(part)

    def _stateful(self) -> Iterator[_Stage]:
        for stage in self._stages:
            if all(hasattr(stage.transform, name) for name in ("inv", "state_dict", "load_state_dict")):
                yield stage


def with_unit(owner: str, kind: str, sampler: SamplerBase, unit: Any) -> SamplerBase:
    """`sampler` whose indices are expanded by `unit`.

    Raises:
        ArgumentError: If `unit` is not a sample unit, or `sampler` selects sequences itself.
    """
    if unit is None or isinstance(unit, Transition):
        return sampler
    if not isinstance(unit, SampleUnit):
        raise ArgumentError(f"{owner}: sample_unit is Transition(), Sequence(length=...) or another one, got {unit!r}")
    if overrides(sampler, SamplerBase, "postprocess"):
        raise ArgumentError(
            f"{owner}: a {kind} selects sequences itself; use sample_unit= with a sampler of single"
            " rows, RandomSampler() or PrioritizedSampler(...), or leave it out"
        )
    return _UnitSampler(owner, sampler, unit)


class _UnitSampler(StatefulGroup, SamplerBase):
    """Sampler of anchors, and the unit that expands them."""

    def __init__(self, owner: str, sampler: SamplerBase, unit: SampleUnit) -> None:
        self._owner: Final = owner
        self._sampler: Final = sampler
        self._unit: Final = unit

    @property
    def members(self) -> tuple[SamplerBase, SampleUnit]:
        """The sampler and the unit."""
        return self._sampler, self._unit

    @property
    def ran_out(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]  it is that of the sampler
        return self._sampler.ran_out

    def attach(self, storage: Storage) -> None:
        for part in self.members:
            part.attach(storage)

    def admit(self, data: Any) -> None:
        for part in self.members:
            part.admit(data)

    def expired(self, count: int) -> Tensor | None:
        return self._sampler.expired(count)

    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        index, info = self._sampler.sample(storage, batch_size, generator=generator)
        return self._unit.expand(index, info, storage)

    def extended(self, index: Tensor, data: Any) -> None:
        for part in self.members:
            part.extended(index, data)

    def replaced(self, index: Tensor, data: Any) -> None:
        for part in self.members:
            part.replaced(index, data)

    def patched(self, keys: Any) -> None:
        for part in self.members:
            part.patched(keys)

    def restart(self) -> None:
        self._sampler.restart()

    def empty(self) -> None:
        for part in self.members:
            part.empty()

    def state_dict(self) -> dict[str, Any]:
        return {
            "sampler": self._sampler.state_dict(),
            "unit": self._unit.state_dict(),
            "sample_unit": repr(self._unit),
        }

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:
        fields = Fields(self._owner, state, ("sampler", "unit", "sample_unit"))
        fields.match(sample_unit=repr(self._unit))
        vars(self).update(
            _sampler=twin_of(self._sampler, fields["sampler"], rows, max_size),
            _unit=twin_of(self._unit, fields["unit"], rows, max_size),
        )


class BufferOptions(TypedDict, total=False):
    """Those of all buffers; `ReplayBuffer` describes them."""

    storage: Storage | None
    writer: Writer | None
    batch_size: int | None
    transform: Callable[[Any], Any] | None
    collate_fn: Callable[[Any], Any] | None
    prefetch: int | None
    pin_memory: bool
    generator: torch.Generator | None
    dim_extend: int | None


class SampledOptions(BufferOptions, total=False):
    """Those of a buffer that is given its sampler."""

    sampler: Sampler | None
    sample_unit: SampleUnit | None
    consume_after_n_samples: int | None
    shared: bool


class OwnSamplerOptions(BufferOptions, total=False):
    """Those of a buffer that creates its sampler."""

    sample_unit: SampleUnit | None


class PrioritizedOptions(OwnSamplerOptions, total=False):
    """Those of a buffer that creates a `PrioritizedSampler`; `PrioritizedReplayBuffer` describes them."""

    eps: float
    dtype: torch.dtype
    reduction: str
    max_priority_within_buffer: bool
    backend: str
    sampler_device: torch.device | str | None
    compilable: bool
    stratified: bool


Batch = tuple[Any, dict[Any, Any]]
"""Data and info of a sample."""


class _Prefetched:
    """A batch in preparation.

    Args:
        last: Whether it ends a pass of the sampler.
    """

    def __init__(self, *, last: bool) -> None:
        self.last = last
        self.gathered = threading.Event()
        self.future: Future[Batch] = Future()


class PrefetchQueue:
    """Queue of prefetched batches in the order of sampling.

    Args:
        depth: Number of batches that are prefetched, and of threads.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._queue: deque[_Prefetched] = deque()
        self._reading: deque[_Prefetched] = deque()  # including batches that were taken before their rows were read
        self._pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def wants_more(self, *, within_pass: bool) -> bool:
        """Return whether to sample another batch before one is taken."""
        if within_pass and self._queue and self._queue[-1].last:
            return False
        return len(self._queue) <= self.depth

    def submit(self, gather: Callable[[], Any], finish: Callable[[Any], Batch], *, last: bool) -> None:
        """Prepare a batch: `gather` reads the storage, `finish` does not."""
        item = _Prefetched(last=last)

        def work() -> None:
            try:
                try:
                    rows = gather()
                finally:
                    item.gathered.set()
                item.future.set_result(finish(rows))
            except BaseException as error:  # noqa: BLE001  raised again by `take`
                item.future.set_exception(error)

        if self.depth == 0:
            work()
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.depth, thread_name_prefix="rl-replay")
            self._pool.submit(work)
        while self._reading and self._reading[0].gathered.is_set():
            self._reading.popleft()
        self._reading.append(item)
        self._queue.append(item)

    def push(self, batch: Batch, *, last: bool) -> None:
        """Append a finished batch."""
        item = _Prefetched(last=last)
        item.gathered.set()
        item.future.set_result(batch)
        self._queue.append(item)

    def take(self) -> tuple[Future[Batch], bool]:
        """Return the oldest batch, and whether it ended a pass."""
        item = self._queue.popleft()
        return item.future, item.last

    def wait_gathered(self) -> None:
        """Wait until every prefetched batch has gathered its rows."""
        while self._reading:
            self._reading.popleft().gathered.wait()

    def results(self) -> list[tuple[Batch, bool]]:
        """All prefetched batches; waits for them."""
        return [(item.future.result(), item.last) for item in self._queue]

    def clear(self) -> None:
        """Discard the prefetched batches."""
        self.wait_gathered()
        self._queue.clear()

    def adopt(self, other: PrefetchQueue) -> None:
        """Continue with the batches of another queue."""
        self.clear()
        self._queue.extend(other._queue)


@dataclass(frozen=True)
class ConditionalUpdateResult:
    """Which rows `ReplayBuffer.update_if_present` has updated, in the order of its `index`.

    Args:
        updated: Bool ``[n]``.
        version_rejected: Rows that are still stored, with a newer version, or updated by another entry of the same
            call; bool ``[n]``. None without versions.
    """

    updated: Tensor
    version_rejected: Tensor | None = None

    @property
    def updated_count(self) -> int:
        """Number of updated rows."""
        return int(self.updated.sum())

    @property
    def version_rejected_count(self) -> int:
        """Number of rows rejected by version."""
        return 0 if self.version_rejected is None else int(self.version_rejected.sum())

    @property
    def stale_count(self) -> int:
        """Number of rows that were overwritten or removed."""
        return len(self.updated) - self.updated_count - self.version_rejected_count


class Patch:
    """New values of some entries of rows, validated one by one.

    Args:
        owner: Component that messages name.
        patch: Argument of `ReplayBuffer.update_if_present`.
        index: Indices of rows, int64 ``[n]``.
        version_key: Entry with the version of a row; None for no versions.
        version: New version of all rows or of each, ``[n]``.

    Raises:
        ArgumentError: If only one of `version_key` and `version` is given, or `patch` has the version.
        ShapeError: If an entry has not one value for each row.
    """

    def __init__(self, owner: str, patch: Any, index: Tensor, version_key: NestedKey | None, version: Any) -> None:
        self._owner, self._index = owner, index
        if (version_key is None) != (version is None):
            raise ArgumentError(f"{owner}: pass both version_key and version, or neither")
        if isinstance(patch, TensorDictBase):
            patch = dict(patch.items(include_nested=True, leaves_only=True))
        if not isinstance(patch, Mapping) or not patch:
            raise ArgumentError(f"{owner}: patch is a mapping from entries to new values, got {patch!r}")
        self.cells: dict[NestedKey, Tensor] = {unwrap(key): torch.as_tensor(value) for key, value in patch.items()}
        self.version_key = None if version_key is None else unwrap(version_key)
        if self.version_key is not None:
            if self.version_key in self.cells:
                raise ArgumentError(f"{owner}: {key_str(self.version_key)} is the version; leave it out of patch")
            version = torch.as_tensor(version)
            self.cells[self.version_key] = version.expand(len(index)) if version.dim() == 0 else version
        for key, cell in self.cells.items():
            if not cell.dim() or len(cell) != len(index):
                raise ShapeError(f"{owner}: {key_str(key)} has shape {list(cell.shape)} for {len(index)} indices")

    def check(self, storage: Storage) -> None:
        """Compare the entries with a stored row.

        Raises:
            ContractError: If a row lacks one of them, or is not a TensorDict.
            SpecError: If a dtype differs.
            ShapeError: If a shape differs.
        """
        like: Any = storage.get(0)
        for key, cell in list(self.cells.items()):
            name, new = key_str(key), cell
            stored = like.get(key, None) if isinstance(like, TensorDictBase) else None
            if not isinstance(stored, Tensor):
                raise ContractError(f"{self._owner}: rows have no tensor {name} to update; nothing was written")
            if key == self.version_key:
                if stored.numel() != 1:
                    raise ShapeError(f"{self._owner}: the version {name} has shape {list(stored.shape)} in a row")
                self.cells[key] = new = cell.reshape(-1, *stored.shape).to(stored.dtype)
            if new.dtype is not stored.dtype or new.shape[1:] != stored.shape:
                wrong = SpecError if new.dtype is not stored.dtype else ShapeError
                raise wrong(
                    f"{self._owner}: {name} is {stored.dtype} {list(stored.shape)} in a row, got {new.dtype}"
                    f" {list(new.shape[1:])}; nothing was written"
                )

    def apply(self, storage: Storage, live: Tensor, *, require_newer: bool) -> ConditionalUpdateResult:
        """Write the rows where `live`, bool ``[n]``, is true; see `ReplayBuffer.update_if_present`."""
        places = live.nonzero().squeeze(1)
        rows = self._index[places]
        found: Any = storage.get(rows)
        stored: Any = torch.stack(found) if isinstance(found, list) else found
        writes, versions = torch.ones_like(rows, dtype=torch.bool), torch.zeros_like(rows)
        if self.version_key is not None:
            before = stored.get(self.version_key).reshape(-1).cpu()
            versions = self.cells[self.version_key].cpu()[places].reshape(-1)
            writes = versions > before if require_newer else versions >= before
        order = np.lexsort((np.arange(len(rows)), versions.numpy(), rows.numpy()))
        last = np.append(np.diff(rows.numpy()[order]) != 0, [True])  # of each row
        writes[torch.from_numpy(order[~last])] = False
        updated, rejected = live, None
        if self.version_key is not None:
            updated = torch.zeros_like(live).index_put_((places[writes],), torch.tensor(data=True))
            rejected = live & ~updated
        new, chosen = stored[writes], places[writes]
        if len(new):
            for key, cell in self.cells.items():
                new.set(key, cell.detach()[chosen.to(cell.device)].to(new.get(key).device))
            storage.set(
                rows[writes], storage.as_batch(new, len(new)) if isinstance(storage, TensorStorageBase) else new
            )
        return ConditionalUpdateResult(updated, rejected)


_CURSOR, _WRITTEN = 5, 6  # of the counters, see `MemmapFiles`


def check_shareable(owner: str, sampler: Sampler, writer: Any, *, unit: bool) -> None:
    """Check the parts of a shared buffer.

    Raises:
        ArgumentError: If a part keeps what other processes would have to know.
    """
    if type(sampler) is not RandomSampler or unit:
        name = "a sample unit" if unit else type(sampler).__name__
        raise ArgumentError(
            f"{owner}: shared=True takes a RandomSampler; {name} does not see what other processes write. Let"
            " these send their batches to the process that samples"
        )
    if type(writer) is not RoundRobinWriter or writer.tracks_generations:
        raise ArgumentError(f"{owner}: shared=True takes a RoundRobinWriter without generations, got {writer!r}")


def shared_storage(owner: str, storage: Storage, sampler: Sampler, writer: Any, *, unit: bool) -> MemmapStorageBase:
    """Return the storage of a shared buffer.

    Raises:
        ArgumentError: If a part keeps what other processes would have to know.
        BackendError: If the storage is on another device.
    """
    share = getattr(storage, "share", None)
    if share is None:
        raise ArgumentError(
            f"{owner}: shared=True takes a LazyTensorStorage or LazyMemmapStorage, got {type(storage).__name__}"
        )
    check_shareable(owner, sampler, writer, unit=unit)
    return share()


def pull(storage: MemmapStorageBase, writer: RoundRobinWriter) -> int:
    """Take over what other processes wrote; returns the number of written rows."""
    storage.refresh()
    counters = storage.files.counters
    writer.move(None if counters[_CURSOR] < 0 else counters[_CURSOR])
    return counters[_WRITTEN]


def push(storage: MemmapStorageBase, writer: RoundRobinWriter, written: int) -> None:
    """Tell other processes where the next row goes."""
    counters, cursor = storage.files.counters, writer.position
    counters[_CURSOR], counters[_WRITTEN] = -1 if cursor is None else cursor, written
