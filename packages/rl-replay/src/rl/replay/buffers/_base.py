"""Replay buffer: a storage, a sampler and a writer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Self, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.utils._pytree import tree_map

from rl.core.arguments import as_integer, constructor_setting
from rl.core.errors import ArgumentError, BackendError, CheckpointError, ContractError, ShapeError
from rl.core.interfaces import Sampler, Storage, Writer
from rl.core.keys import INDEX, PRIORITY_WEIGHT, NestedKey
from rl.core.profiling import profiled, profiling_enabled
from rl.core.state import load, pack, reading, save, set_generator, unpack
from rl.replay import _foreign
from rl.replay._arguments import Index, check_parts, completed, overrides, row_index
from rl.replay._kinds import class_in, one_row
from rl.replay._query import Trajectory
from rl.replay._slice_sampling import RUNS
from rl.replay._state import Fields, SharedLock, Stateful, StatefulGroup, adopt_all, twin_of
from rl.replay._trajectories import stored_trajectories
from rl.replay._untraced import untraced
from rl.replay.buffers._pipeline import (
    Batch,
    ConditionalUpdateResult,
    Patch,
    PrefetchQueue,
    Transforms,
    check_shareable,
    collate,
    pull,
    push,
    shared_storage,
    with_unit,
)
from rl.replay.sample_units import SampleUnit, Transition
from rl.replay.samplers._base import SamplerBase
from rl.replay.samplers._uniform import ConsumingSampler, RandomSampler
from rl.replay.storages._list import ListStorage
from rl.replay.storages._memmap import MemmapStorageBase, with_rows
from rl.replay.storages._rows import TensorStorageBase
from rl.replay.writers import RoundRobinWriter, WriterBase

FILE = "state.safetensors"
GENERATION = "index_generation"
_STATE = ("types", "storage", "sampler", "writer", "transforms", "write_count", "batch_size", "generator", "in_flight")


@_foreign.buffer
class ReplayBuffer(Stateful):
    """Replay buffer: stores transitions and samples batches of them.

    Args:
        storage: Storage of the rows; ``ListStorage(1000)`` if None.
        sampler: Sampler of the rows of a batch; `RandomSampler` if None.
        sample_unit: Unit that selects the rows of a batch for each selected one, such as `Sequence`; that row itself if
            None.
        writer: Writer, which selects the indices of new rows; `RoundRobinWriter` if None.
        batch_size: Number of rows of a batch if `sample` gets none; needed for iteration and `prefetch`.
        transform: Argument of `append_transform`.
        collate_fn: Function that builds a batch of the result of `storage.get`; a list of TensorDicts or tensors is
            stacked if None.
        prefetch: Number of batches that are prepared ahead, and of threads; 0 or None for none.
        pin_memory: Whether to put batches into page-locked memory, for copies to a CUDA device.
        generator: Source of randomness; the global one if None. Its state is part of `state_dict`.
        dim_extend: Dimension of a batch that counts rows; the first one if None. With 1, a batch ``[B, T]`` yields T
            rows of B elements. Without effect for the dimensions that a storage counts with ``ndim=``.
        consume_after_n_samples: Number of samples of each row, after which it is overwritten first; in place of
            ``sampler=ConsumingSampler(n)``.
        shared: Whether several processes use the buffer: pass it to forked or spawned processes. It takes a
            `LazyTensorStorage` or `LazyMemmapStorage`, a `RandomSampler` and a `RoundRobinWriter`. A method waits
            until no other process is in one, so that no row is read while it is written; transforms, prefetched
            batches and the generator are those of each process.

    Rows, keys, shapes and dtypes are fixed by the first batch. All methods may be called from several threads.
    With `prefetch`, a batch is sampled when the one `prefetch` positions before it is taken, and has the rows as
    they were then: `extend` waits until prefetched batches have gathered theirs.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.replay.storages import LazyTensorStorage
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32)
        >>> index = buffer.extend(TensorDict(obs=torch.randn(100, 4), batch_size=[100]))
        >>> len(buffer), buffer.sample()["obs"].shape
        (100, torch.Size([32, 4]))
    """

    _fields_of_state: tuple[str, ...] = _STATE
    _annotations: tuple[str, ...] = (INDEX, PRIORITY_WEIGHT, GENERATION)  # written before a sampler sets flags
    _reads_at_once = False  # of prefetched batches: before the next write

    def __init__(  # noqa: PLR0913  the parts and options of a buffer
        self,
        *,
        storage: Storage | None = None,
        sampler: Sampler | None = None,
        sample_unit: SampleUnit | None = None,
        writer: Writer | None = None,
        batch_size: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        prefetch: int | None = None,
        pin_memory: bool = False,
        generator: torch.Generator | None = None,
        dim_extend: int | None = None,
        consume_after_n_samples: int | None = None,
        shared: bool = False,
    ) -> None:
        owner = type(self).__name__
        _check_options(owner, batch_size, prefetch, pin_memory=pin_memory)
        check_parts(owner, storage=storage, sampler=sampler, writer=writer, transform=transform)
        self._given_sampler = _sampler_of(owner, sampler, consume_after_n_samples)
        self._sample_unit: Final[SampleUnit] = Transition() if sample_unit is None else sample_unit
        self._sampler = completed(self.sampler, SamplerBase)
        self._rows = with_unit(owner, type(self.sampler).__name__, self._sampler, sample_unit)
        self._given_writer: Final[Writer] = RoundRobinWriter() if writer is None else writer
        self._writer: Final = completed(self.writer, WriterBase)
        storage = ListStorage() if storage is None else storage
        if shared:
            unit = self._rows is not self._sampler
            storage = shared_storage(owner, storage, self.sampler, self.writer, unit=unit)
        self._storage: Final[Storage] = storage
        _check_sampler(owner, type(self.sampler).__name__, self._sampler, self.storage, prefetch)
        self._batch_size = None if batch_size is None else int(batch_size)
        self.generator: Final = generator
        rows_dims = getattr(self.storage, "ndim", 1)
        extended = 0 if dim_extend is None else as_integer(dim_extend, owner, "dim_extend", 0)
        self._extended_dim: Final = 0 if extended < rows_dims else extended
        self._transforms: Final = Transforms(owner)
        if transform is not None:
            self._transforms.append(transform, invert=False)
        self._collate = collate if collate_fn is None else collate_fn
        self._pin_memory = pin_memory
        self._flight = PrefetchQueue(prefetch or 0)
        self._write_count = 0
        self._shared: Final = shared
        self._lock: AbstractContextManager[object] = self._new_lock()
        selects = overrides(self._writer, WriterBase, "select")
        self._prepares: Final = selects or self._extended_dim > 0  # batches before they are written
        self._tracked: Final = self._writer if self._writer.tracks_generations else None
        self._in_runs: Final = isinstance(self.storage, TensorStorageBase)  # adjacent rows are written as a slice
        by_step = rows_dims > 1 and isinstance(self.storage, TensorStorageBase)
        self._by_step: Any = self.storage if by_step else None  # which has the environments of a batch side by side
        self._follow_sampler()
        self._attach()

    storage: Final[Storage] = constructor_setting("_storage", "Create a new buffer with storage=...")
    """Storage of the rows."""
    writer: Final[Writer] = constructor_setting("_given_writer", "Create a new buffer with writer=...")
    """Writer, which selects the indices of new rows."""
    sample_unit: Final[SampleUnit] = constructor_setting("_sample_unit")
    """Unit that selects the rows of a batch for each selected one."""
    collate_fn: Final[Callable[[Any], Any]] = constructor_setting("_collate")
    """Function that builds a batch of the result of `storage.get`."""
    pin_memory: Final[bool] = constructor_setting("_pin_memory")
    """Whether batches are put into page-locked memory."""
    shared: Final[bool] = constructor_setting("_shared")
    """Whether several processes use the buffer."""
    prefetch: Final[int] = constructor_setting("_depth")
    """Number of batches that are prepared ahead."""

    @property
    def sampler(self) -> Sampler:
        """Sampler of the rows of a batch; assigning another one calls `set_sampler`."""
        return self._given_sampler

    @sampler.setter
    def sampler(self, sampler: Sampler) -> None:
        self.set_sampler(sampler)

    @property
    def batch_size(self) -> int | None:
        """Number of rows of a batch if `sample` gets none; assigning another one discards prefetched batches."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, batch_size: int | None) -> None:
        _check_options(type(self).__name__, batch_size, self.prefetch, pin_memory=False)
        with self._lock:
            self._batch_size = None if batch_size is None else int(batch_size)
            self._flight.clear()

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Sample with another sampler from now on, which reads the stored rows; prefetched batches are discarded.

        Args:
            sampler: Sampler of the rows of a batch; it belongs to no other buffer.

        Returns:
            The sampler before.

        Raises:
            ArgumentError: If the sampler does not suit the other parts. Nothing is changed then.
        """
        owner, kind = type(self).__name__, type(sampler).__name__
        check_parts(owner, sampler=sampler, transform=None)
        own = completed(sampler, SamplerBase)
        rows = with_unit(owner, kind, own, self.sample_unit)
        if self._shared:
            check_shareable(owner, sampler, self.writer, unit=rows is not own)
        _check_sampler(owner, kind, own, self.storage, self.prefetch)
        with self._lock:
            rows.attach(self.storage)
            before, self._given_sampler = self._given_sampler, sampler
            self._sampler, self._rows = own, rows
            self._flight.clear()
            self._follow_sampler()
        return before

    def _follow_sampler(self) -> None:
        """Set what depends on the kind of the sampler."""
        self._postprocesses = overrides(self._sampler, SamplerBase, "postprocess")
        self._consumes = overrides(self._sampler, SamplerBase, "available")

    @property
    def write_count(self) -> int:
        """Number of rows written since the buffer was created or emptied, overwritten rows included."""
        if self.shared:
            with self._lock:
                return self._write_count
        return self._write_count

    @property
    def _depth(self) -> int:
        return self._flight.depth

    def __len__(self) -> int:
        """Return the number of stored rows; with a `ConsumingSampler` of those that may still be sampled."""
        if self._shared:
            with self._lock:
                return len(self._storage)
        return self._sampler.available(self._storage) if self._consumes else len(self._storage)

    def _new_lock(self) -> AbstractContextManager[object]:
        if not self.shared:
            return threading.RLock()
        storage = cast("MemmapStorageBase", self.storage)
        return SharedLock(storage.files.lock, self._pull, self._push, self._forked)

    def _pull(self) -> None:
        self._write_count = pull(cast("MemmapStorageBase", self.storage), cast("RoundRobinWriter", self.writer))

    def _push(self) -> None:
        push(cast("MemmapStorageBase", self.storage), cast("RoundRobinWriter", self.writer), self._write_count)

    def _forked(self) -> None:
        self._flight = PrefetchQueue(self.prefetch)  # the threads are those of the other process

    def __getstate__(self) -> dict[str, Any]:
        own = ("_lock", "_flight")  # of this process
        return {**{name: value for name, value in self.__dict__.items() if name not in own}, "_depth": self.prefetch}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._flight = PrefetchQueue(state.pop("_depth"))
        self.__dict__.update(state)
        self._lock = self._new_lock()

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.shared:  # for a spawned process
            return super().__reduce_ex__(protocol)
        owner = type(self).__name__
        raise TypeError(
            f"a {owner} cannot be copied or pickled, because threads may use it. Construct another one and load the"
            " state_dict() of this one, or use dumps(folder) and loads(folder)"
        )

    def __repr__(self) -> str:
        lines = [f"{name}={value!r}" for name, value in self._described()]
        return f"{type(self).__name__}(\n    " + ",\n    ".join(lines) + ",\n)"

    def add(self, data: Any) -> Tensor:
        """Write one row; returns its index, int64 ``[]``, or that of the rows that transforms make of it, ``[n]``.

        Raises:
            ContractError: If a key is missing or new.
            SpecError: If a dtype differs from the first row.
            ShapeError: If a shape differs from the first row.
        """
        batch = one_row(data)
        if self._extended_dim and not isinstance(batch, list):
            batch = batch.transpose(0, self._extended_dim)
        index = self.extend(batch)
        return index[0] if index.numel() == 1 else index

    def extend(self, data: Any) -> Tensor:
        """Write the rows of a batch ``[n, ...]``; returns their indices, int64 ``[n]``.

        A batch ``[B, T]`` makes B rows of T steps, in a storage with ``ndim=2`` ``B * T`` elements. When the
        storage is full, the oldest rows are overwritten. Transforms with an inverse map the batch first, the last one
        first; the index is ``[0]`` if they leave nothing to write.

        Raises:
            ContractError: If a key is missing or new, or the writer rejects.
            SpecError: If a dtype differs from the first batch.
            ShapeError: If a shape differs from the first batch, or the batch has no rows or more than the
                storage can hold.
        """
        if torch.compiler.is_compiling():
            return untraced(self._write_prepared)(data)
        write = self._write_prepared if self._prepares or self._transforms.writes else self._write
        if not profiling_enabled():
            return write(data)
        with profiled("replay.extend"):
            return write(data)

    def sample(self, batch_size: int | None = None, *, return_info: bool = False, include_info: bool = False) -> Any:
        """Sample a batch.

        Args:
            batch_size: Number of rows, or with a `sample_unit` of anchors; that of the buffer if None. Another number
                ignores prefetched batches.
            return_info: Whether to also return a dict with ``index`` (int64 ``[n]``) and what the sampler adds.
            include_info: Alias of `return_info`.

        Returns:
            The batch ``[n, ...]``, or the pair of batch and info.

        Raises:
            ContractError: If the buffer is empty.
            ArgumentError: If no batch size was given, or it is below 1.
        """
        with profiled("replay.sample"):
            data, info = self._sample(self._size(batch_size))
        return (data, info) if return_info or include_info else data

    def _sample(self, size: int) -> tuple[Any, dict[Any, Any]]:
        if size == self._batch_size and (self._flight.depth or len(self._flight)):
            return self._next(size, within_pass=False)[0].result()
        with self._lock:
            index, info = self._select(size)
            rows = self._read(index, info)
        return self._finish(rows, index, info)

    def __iter__(self) -> Iterator[Any]:
        """Batches of one new pass, each row exactly once; endless if the sampler samples with replacement.

        Prefetched batches are discarded. Writing rows begins a new pass. A second iteration restarts the pass
        of the first, and `sample` takes batches from it.

        Raises:
            ContractError: If the buffer is empty.
            ArgumentError: If it has no batch size.
        """
        size = self._size(None)
        with self._lock:
            self._flight.clear()
            self._rows.restart()
        last = False
        while not last:
            future, last = self._next(size, within_pass=True)
            yield future.result()[0]

    def __getitem__(self, index: Index) -> Any:
        """Copy of stored rows, without transforms: one row for an int, which may count from the end, a batch otherwise.

        Raises:
            IndexError: If an index is outside of the stored rows.
        """
        index = row_index(type(self).__name__, index, len(self.storage))
        with self._lock:
            rows = self.storage.get(index)
        return rows if isinstance(index, int) else self._collate(rows)

    def query(
        self, predicate: Callable[[Trajectory], bool] | None = None, *, trajectory_key: NestedKey | None = None
    ) -> list[Trajectory]:
        """Return copies of the stored trajectories that satisfy a condition, without transforms; the oldest one first.

        Args:
            predicate: Condition created with `rl.replay.traj`, or a function from `Trajectory` to a boolean; all
                trajectories if None.
            trajectory_key: Trajectory id; see `iter_trajectories`. What is left of an overwritten trajectory counts as
                a shorter one.

        Raises:
            ContractError: If rows have no end flags and no trajectory ids, or are no TensorDicts.

        Example:
            >>> from tensordict import TensorDict
            >>> from rl.replay import LazyTensorStorage, traj
            >>> buffer = ReplayBuffer(storage=LazyTensorStorage(10))
            >>> ids = torch.tensor([0, 0, 0, 1, 1])
            >>> _ = buffer.extend(TensorDict(x=torch.arange(5), episode=ids, batch_size=[5]))
            >>> [found.x.tolist() for found in buffer.query(traj.x.sum() > 3)]
            [[3, 4]]
        """
        with self._lock:
            parts = stored_trajectories(self.storage, self.sampler, self._writer.cursor, trajectory_key)
            found = (Trajectory(self[rows]) for rows in parts)
            return [one for one in found if predicate is None or predicate(one)]

    def __setitem__(self, index: Index, data: Any) -> None:
        """Replace stored rows, without transforms; they get the priority of new rows and begin a new pass.

        `data` is what ``buffer[index]`` returns, one row for an int and rows ``[n, ...]`` otherwise, also with a
        storage of ``ndim=2``. Slices and sequences follow replaced end flags and trajectory ids.

        Raises:
            IndexError: If an index is outside of the stored rows.
            RLError: As `extend`. In each case nothing is written.
        """
        owner = type(self).__name__
        with self._lock:
            stored = len(self.storage)
            rows = torch.arange(stored, device="cpu")[row_index(owner, index, stored)].reshape(-1)
            data = one_row(data) if isinstance(index, int) else data
            self._check(data)
            if self._by_step is not None:
                data = self._by_step.as_batch(data, len(rows))
            self._rows.admit(data)
            self._flight.wait_gathered()
            self.storage.set(rows, data)
            self._writer.rewritten(rows)
            self._rows.replaced(rows, data)

    def append_transform(self, transform: Callable[[Any], Any], *, invert: bool = False) -> Self:
        """Apply `transform` to every sampled batch, after the existing ones; returns the buffer.

        A transform with a method ``inv``, see `rl.core.interfaces.Transform`, is also applied inversely to every batch
        that `extend` and `add` write, before the existing ones.

        Args:
            transform: Any callable from TensorDict to TensorDict. With `prefetch` it runs in other threads.
            invert: Whether to exchange the two directions: call `transform` on batches that are written, and its
                inverse, if it has one, on samples.

        Raises:
            ArgumentError: If it is not callable.
            ContractError: If batches are prefetched already.
        """
        owner = type(self).__name__
        check_parts(owner, transform=transform)
        with self._lock:
            if len(self._flight):
                raise ContractError(
                    f"{owner}: {len(self._flight)} batches are prefetched without this transform; append it before the"
                    " first sample"
                )
            self._transforms.append(transform, invert=invert)
        return self

    def empty(self) -> None:
        """Remove all rows, also those that transforms hold back, and prefetched batches; the layout stays fixed.

        Raises:
            ContractError: If the writer rejects.
        """
        with self._lock:
            self.writer.empty()
            self._flight.clear()
            self.storage.empty()
            self._rows.empty()
            self._transforms.empty()
            self._write_count = 0

    def update_priority(self, index: Tensor, priority: Tensor) -> None:
        """Set the priorities ``[n]`` of rows ``[n]``.

        Raises:
            ContractError: If the sampler has no priorities.
        """
        with self._lock:
            self.sampler.update_priority(index, priority)

    def update_if_present(
        self,
        *,
        index: Tensor,
        generation: Tensor,
        patch: Mapping[NestedKey, Tensor] | TensorDictBase,
        version_key: NestedKey | None = None,
        version: Tensor | int | None = None,
        require_newer: bool = False,
    ) -> ConditionalUpdateResult:
        """Replace some entries of sampled rows, except of rows that were overwritten since they were sampled.

        For values that are computed from samples while other rows are written: recurrent states, embeddings, labels.
        Needs ``writer=RoundRobinWriter(track_generations=True)``. An update is not a write: rows keep their generation,
        their priority and their position in a pass.

        Args:
            index: Indices of rows, int64 ``[n]``: ``index`` of a sample.
            generation: Generations of the rows, int64 ``[n]``: ``index_generation`` of the sample.
            patch: New values ``[n, ...]`` of some entries.
            version_key: Entry of a row with its version, one number. Rows with a higher version than `version` are not
                updated; others get `version` there. None for no versions.
            version: Version of the new values, one number or ``[n]``.
            require_newer: Whether rows of the same version are not updated either.

        Of a row that comes several times the values with the highest version are written, of several such the last.

        Raises:
            ArgumentError: If only one of `version_key` and `version` is given.
            ContractError: If the writer does not count generations, or a row lacks an entry.
            IndexError: If an index is outside of the storage.
            SpecError: If a dtype differs.
            ShapeError: If a shape differs. In each case nothing is written.
        """
        owner = type(self).__name__
        if self._tracked is None:
            raise ContractError(
                f"{owner}: its {type(self.writer).__name__} does not count the writes of rows, so that an overwritten"
                " row cannot be told apart; construct the buffer with writer=RoundRobinWriter(track_generations=True)"
            )
        index, generation = (torch.as_tensor(part, device="cpu").long().reshape(-1) for part in (index, generation))
        if len(index) != len(generation):
            raise ShapeError(f"{owner}: {len(index)} indices and {len(generation)} generations")
        if len(outside := index[(index < 0) | (index >= self.storage.max_size)]):
            raise IndexError(f"{owner}: index {int(outside[0])} is outside [0, {self.storage.max_size})")
        update = Patch(owner, patch, index, version_key, version)
        with self._lock:
            if len(self.storage):
                update.check(self.storage)
            live = (generation >= 0) & (self._tracked.generations_of(index) == generation) & (index < len(self.storage))
            if not bool(live.any()):
                return ConditionalUpdateResult(live, None if version_key is None else torch.zeros_like(live))
            self._flight.wait_gathered()
            result = update.apply(self.storage, live, require_newer=require_newer)
            self._rows.patched(list(update.cells))
        return result

    def state_dict(self) -> dict[str, Any]:
        """State of storage, sampler, writer, transforms, generator and prefetched batches, to continue exactly.

        Tensors are copies; the rest are plain containers.

        Raises:
            CheckpointError: If stored data are neither tensors nor plain data.
        """
        with self._lock:
            return self._state(self.storage.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            CheckpointError: If `state` is damaged, or of a buffer with other parts. Nothing is changed then.
        """
        with self._lock:
            super().load_state_dict(state)

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:  # noqa: ARG002  its storage knows them
        fields = self._fields(state)
        storage, size = twin_of(self.storage, fields["storage"]), self.storage.max_size
        stored = rows_of(storage)
        sampler = twin_of(self._rows, fields["sampler"], stored, size)
        writer = twin_of(self._writer, fields["writer"], stored, size)
        self._read_rest(fields, stored)
        vars(self).update(_storage=storage, _rows=sampler, _writer=writer)

    def adopt(self, twin: Any) -> None:
        """Continue as `twin`; storage, sampler, writer and transforms stay the same objects."""
        self._flight.wait_gathered()
        parts = [(getattr(self, name), getattr(twin, name)) for name in ("_transforms", "storage", "_rows", "_writer")]
        adopt_all(type(self).__name__, parts)
        self._attach()
        self._adopt_rest(twin)

    def _adopt_rest(self, twin: Self) -> None:
        """Continue with the count of writes, the generator and the prefetched batches of `twin`."""
        self._flight.adopt(twin._flight)
        self._write_count = twin._write_count
        if self.generator is not None and twin.generator is not None:
            self.generator.set_state(twin.generator.get_state())

    def dumps(self, path: str | Path) -> None:
        """Write a checkpoint into the folder `path`: one safetensors file, no pickle.

        An older checkpoint there stays valid until the new one is complete. Into the folder `scratch_dir` of a
        `LazyMemmapStorage`, everything but the rows is written: they are in files there, which later writes change.

        Raises:
            CheckpointError: If stored data are neither tensors nor plain data.
        """
        with self._lock:
            if isinstance(self.storage, MemmapStorageBase) and self.storage.keeps(Path(path)):
                state = self._state(self.storage.state_in_place())
            else:
                state = self.view_state()
            save(Path(path) / FILE, state)

    def view_state(self) -> dict[str, Any]:
        """As `state_dict`, but tensors may be views of the stored rows."""
        with self._lock:
            rows = (
                self.storage.view_state() if isinstance(self.storage, TensorStorageBase) else self.storage.state_dict()
            )
            return self._state(rows)

    def loads(self, path: str | Path) -> None:
        """Continue from the checkpoint in the folder `path`.

        Raises:
            CheckpointError: If there is none, it is damaged, or it does not fit this buffer.
        """
        state = load(Path(path) / FILE)
        with self._lock, reading(type(self).__name__):
            if isinstance(state.get("storage"), dict) and "folder" in state["storage"]:
                state["storage"] = with_rows(state["storage"], Path(path), self.storage)
        self.load_state_dict(state)

    def save(self, path: str | Path) -> None:
        """Alias of `dumps`."""
        self.dumps(path)

    def load(self, path: str | Path) -> None:
        """Alias of `loads`."""
        self.loads(path)

    def _described(self) -> list[tuple[str, Any]]:
        options: list[tuple[str, Any]] = [
            ("storage", self.storage),
            ("sampler", self.sampler),
            ("writer", self.writer),
            ("batch_size", self.batch_size),
        ]
        if not isinstance(self.sample_unit, Transition):
            options.append(("sample_unit", self.sample_unit))
        if len(self._transforms):
            options.append(("transform", self._transforms))
        if self.prefetch:
            options.append(("prefetch", self.prefetch))
        if self.shared:
            options.append(("shared", True))
        return options

    def _size(self, batch_size: int | None) -> int:
        if batch_size is not None:
            return as_integer(batch_size, type(self).__name__, "batch_size", 1)
        if self._batch_size is None:
            raise ArgumentError(
                f"{type(self).__name__}: no batch size: call sample(n), or construct the buffer with batch_size=n"
            )
        return self._batch_size

    def _write_prepared(self, data: Any) -> Tensor:
        """Write what transforms, `dim_extend` and the writer make of a batch; rows that are left out have the index -1.

        The transforms continue from before if the batch is not written.
        """
        with self._lock:
            before = self._transforms.state_dict()
            try:
                if self._transforms.writes and (data := self._transforms.write(data)) is None:
                    return torch.empty(0, dtype=torch.int64, device="cpu")
                return self._write_selected(data)
            except BaseException:
                self._transforms.load_state_dict(before)
                raise

    def _write_selected(self, data: Any) -> Tensor:
        if self._extended_dim:
            if getattr(data, "ndim", 0) <= self._extended_dim:
                raise ShapeError(
                    f"{type(self).__name__}: dim_extend={self._extended_dim} needs a batch with that dimension, got"
                    f" {list(getattr(data, 'shape', []))}"
                )
            data = data.transpose(0, self._extended_dim)
        self._check(data)
        kept = self._writer.select(self.storage, data)
        if kept is None:
            return self._write(data)
        index = torch.full((len(data),), -1, device="cpu")
        if len(kept):
            rows = [data[position] for position in kept.tolist()] if isinstance(data, list) else data[kept]
            index[kept] = self._write(rows)
        return index

    def _write(self, data: Any) -> Tensor:
        with self._lock:
            self._check(data)
            count = self._storage.count(data)
            self._rows.admit(data)
            if (expired := self._rows.expired(count)) is not None:
                self._writer.reuse(expired)
            index = self._writer.claim(self._storage, count)
            self._flight.wait_gathered()
            run = self._writer.run if self._in_runs else None
            rows = index if run is None else run
            if self._by_step is None:
                self._storage.set(rows, data)  # validates before it writes
            else:
                self._by_step.set(rows, data, by_step=True)
                index = self._by_step.by_batch(index, data)
            self._writer.extended(index, data)
            self._write_count += count
            self._rows.extended(index, data)
        return index

    def _attach(self) -> None:
        self._rows.attach(self.storage)
        self._writer.attach(self.storage)

    def _check(self, data: Any) -> None:
        """Check the type of a batch; the storage checks keys, shapes and dtypes."""

    def _next(self, size: int, *, within_pass: bool) -> tuple[Future[Batch], bool]:
        with self._lock:
            while self._flight.wants_more(within_pass=within_pass):
                self._submit(size)
            return self._flight.take()

    def _submit(self, size: int) -> None:
        # Sampled in the caller's thread, so that the order of random numbers is reproducible.
        index, info = self._select(size)
        # Another process could overwrite the rows of a shared buffer before a thread reads them.
        rows = self._read(index, info) if self.shared or self._reads_at_once else None
        self._flight.submit(
            (lambda: rows) if self.shared or self._reads_at_once else (lambda: self._read(index, info)),
            lambda rows: self._finish(rows, index, info),
            last=self.sampler.ran_out,
        )

    def _select(self, size: int, generator: torch.Generator | None = None) -> tuple[Tensor, dict[Any, Any]]:
        generator = generator if self.generator is None else self.generator
        index, info = self._rows.sample(self._storage, size, generator=generator)
        if self._tracked is not None:
            info[GENERATION] = self._tracked.generations_of(index).to(index.device)
        return index, info

    def _read(self, index: Tensor, info: dict[Any, Any]) -> Any:
        runs = info.get(RUNS)
        if runs is not None and isinstance(self._storage, TensorStorageBase):
            return self._storage.get_runs(index, runs)
        return self._storage.get(index)

    def _finish(self, rows: Any, index: Tensor, info: dict[Any, Any]) -> Batch:
        info = {INDEX: index, **info}
        data = self._collate(rows)
        if self._collate is not collate and isinstance(data, TensorDictBase):
            data = data.copy()  # entries are written into it, and it may be a row of the storage
        if isinstance(rows, list) and index.dim() > 1 and isinstance(data, TensorDictBase):
            data = data.reshape(*index.shape, *data.batch_size[1:])
        if not self._postprocesses:
            data = self._annotate(data, info)
        else:
            known = {key: info[key] for key in self._annotations if key in info}
            data = self._sampler.postprocess(self._annotate(data, known), info)
        data = self._transforms.read(data)
        if self._pin_memory:
            data = tree_map(lambda part: part.pin_memory(), data, is_leaf=lambda part: hasattr(part, "pin_memory"))
        return data, info

    def _annotate(self, data: Any, info: dict[Any, Any]) -> Any:  # noqa: ARG002  buffers of TensorDicts use it
        return data

    def _state(self, storage: dict[str, Any]) -> dict[str, Any]:
        owner = type(self).__name__
        for (data, _), _ in self._flight.results():
            if not isinstance(data, (TensorDictBase, Tensor)) and (name := class_in(data)) is not None:
                raise CheckpointError(
                    f"{owner}: a prefetched batch is of the class {name}, which a state cannot restore; save after a"
                    " pass, or without prefetch="
                )
        in_flight = [
            {"data": pack(data, f"{owner}: a prefetched batch"), "info": pack(info, f"{owner}: its info"), "last": last}
            for (data, info), last in self._flight.results()
        ]
        return {
            "types": self._types(),
            "storage": storage,
            "sampler": self._rows.state_dict(),
            "writer": self.writer.state_dict(),
            "transforms": self._transforms.state_dict(),
            "write_count": self._write_count,
            "batch_size": self.batch_size,
            "generator": None if self.generator is None else self.generator.get_state(),
            "in_flight": in_flight,
        }

    def _types(self) -> dict[str, str]:
        parts = {"storage": self.storage, "sampler": self.sampler, "writer": self.writer}
        return {name: getattr(part, "saved_as", type(part).__name__) for name, part in parts.items()}

    def _fields(self, state: Mapping[str, Any]) -> Fields:
        owner = type(self).__name__
        fields = Fields(owner, state, self._fields_of_state)
        types = Fields(owner, fields["types"], tuple(self._types()))
        for name, own in self._types().items():
            if types[name] != own:
                raise CheckpointError(f"{owner}: its {name} is a {own}, the state is of a {types[name]}")
        return fields

    def _read_rest(self, fields: Fields, rows: int | None) -> None:
        """Set the attributes of a twin that are not parts with a state of their own."""
        owner = type(self).__name__
        self._write_count = fields.integer("write_count")
        if (fields["generator"] is None) != (self.generator is None):
            has, lacks = ("buffer", "state") if fields["generator"] is None else ("state", "buffer")
            raise CheckpointError(
                f"{owner}: the {has} has a generator, the {lacks} has none; the continuation would sample other batches"
            )
        if self.generator is not None:
            generator = torch.Generator(self.generator.device)
            set_generator(generator, fields.tensor("generator", torch.uint8, 1), owner)
            vars(self)["generator"] = generator
        size = None if fields["batch_size"] is None else fields.integer("batch_size", low=1)
        in_flight = fields.items("in_flight")
        if in_flight and size != self.batch_size:
            raise CheckpointError(
                f"{owner}: the state holds prefetched batches of {size} rows, this buffer has "
                f"batch_size={self.batch_size}"
            )
        # A transform or a function may have moved its batches: they go where they were, if that is known.
        moved = len(self._transforms) or self._collate is not collate
        device = None if moved else getattr(self.storage, "device", None)
        queue = PrefetchQueue(self.prefetch)
        for item in in_flight:
            batch, last = _prefetched(owner, item, rows, device)
            queue.push(batch, last=last)
        vars(self).update(_flight=queue, _transforms=twin_of(self._transforms, fields["transforms"]))


def rows_of(twin: Any) -> int | None:
    """Return the number of rows that a storage will have, from its twin; None if only the members of a group know."""
    return len(twin) if hasattr(twin, "__len__") and not isinstance(twin, StatefulGroup) else None


def _sampler_of(owner: str, sampler: Sampler | None, consume_after_n_samples: int | None) -> Sampler:
    if consume_after_n_samples is None:
        return RandomSampler() if sampler is None else sampler
    if sampler is not None:
        raise ArgumentError(
            f"{owner}: pass sampler or consume_after_n_samples={consume_after_n_samples}, which selects"
            f" ConsumingSampler, and not both; got {sampler!r}"
        )
    return ConsumingSampler(consume_after_n_samples)


def _check_sampler(owner: str, kind: str, sampler: SamplerBase, storage: Storage, prefetch: int | None) -> None:
    """Check that a sampler suits the other parts.

    Raises:
        ArgumentError: If it has priorities of fewer rows than `storage`, or does not allow `prefetch`.
    """
    capacity = sampler.max_capacity
    if capacity is not None and capacity < storage.max_size:
        raise ArgumentError(
            f"{owner}: its storage has max_size={storage.max_size}, its {kind} only max_capacity={capacity}; give both"
            " the same"
        )
    if prefetch and not sampler.prefetchable:
        raise ArgumentError(
            f"{owner}: prefetched batches may be discarded, and a {kind} would not sample their rows again; leave out"
            f" prefetch={prefetch}"
        )


def _check_options(owner: str, batch_size: Any, prefetch: Any, *, pin_memory: bool) -> None:
    """Check arguments of a buffer.

    Raises:
        ArgumentError: If one is out of its range.
        BackendError: If there is no CUDA device for `pin_memory`.
    """
    if batch_size is not None:
        as_integer(batch_size, owner, "batch_size", 1)
    if prefetch is not None:
        as_integer(prefetch, owner, "prefetch", 0)
    if prefetch and batch_size is None:
        raise ArgumentError(f"{owner}: prefetch={prefetch} prepares batches ahead and needs batch_size=...")
    if pin_memory and not torch.cuda.is_available():
        raise BackendError(f"{owner}: pin_memory=True needs a CUDA device, and none is available; leave it out")


def _prefetched(owner: str, item: Any, rows: int | None, device: torch.device | None) -> tuple[Batch, bool]:
    """Return a prefetched batch of a state, on `device` if one is given, and whether it ended a pass."""
    fields = Fields(owner, item, ("data", "info", "last"))
    data = unpack(fields["data"], f"{owner}: a prefetched batch", device)
    info = unpack(fields["info"], f"{owner}: a prefetched batch")
    if not isinstance(info, dict) or INDEX not in info:
        fields.fail("the info of a prefetched batch has no index")
    index = info[INDEX]
    if not isinstance(index, Tensor) or index.dtype is not torch.int64 or not index.numel():
        fields.fail("the index of a prefetched batch must be an int64 tensor")
    if int(index.min()) < 0 or (rows is not None and int(index.max()) >= rows):
        fields.fail(f"the index of a prefetched batch is outside [0, {rows})")
    if not isinstance(data, (TensorDictBase, Tensor, list, tuple, dict)):
        fields.fail(f"a prefetched batch is a {type(data).__name__}")
    return (data, info), fields.flag("last")
