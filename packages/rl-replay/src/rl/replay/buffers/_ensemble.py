"""Several replay buffers as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, ContractError
from rl.core.interfaces import Sampler
from rl.core.keys import INDEX, NestedKey
from rl.core.state import save
from rl.replay._query import Trajectory
from rl.replay._state import adopt_all
from rl.replay.buffers._base import FILE, ReplayBuffer
from rl.replay.buffers._pipeline import Batch
from rl.replay.buffers._tensordict import TensorDictReplayBuffer
from rl.replay.samplers._ensemble import BUFFER_IDS, SamplerEnsemble, merged
from rl.replay.storages._ensemble import StorageEnsemble, join
from rl.replay.writers import WriterEnsemble

_PARTS = "parts"
_STATE = ("types", "members", "transforms", "write_count", "batch_size", "generator", "in_flight")


@foreign_arguments()
class ReplayBufferEnsemble(ReplayBuffer):
    """Samples from several buffers: a mixture of data sets, tasks or agents.

    Each member samples its part of a batch with its own sampler and transforms; the parts are joined, one member after
    the other. Write to a member: ``ensemble[k].extend(batch)``. A member without a generator takes that of the
    ensemble.

    The info of a sample has ``buffer_ids``, int64 ``[n]``, the member of each row, and ``index``, which counts the
    positions of all members (see `StorageEnsemble`). Both are also entries of samples if every member is a
    `TensorDictReplayBuffer`.

    Args:
        buffers: Members.
        storages: Ensemble of the storages of the members, with `samplers` and `writers` in place of `buffers`.
        samplers: Ensemble of the samplers of the members; without `p` and the options after it.
        writers: Ensemble of the writers of the members.
        p: Argument of `SamplerEnsemble`.
        sample_from_all: Argument of `SamplerEnsemble`.
        num_buffer_sampled: Argument of `SamplerEnsemble`.
        batch_size: Argument of `ReplayBuffer`.
        transform: Argument of `ReplayBuffer`; called on joined batches.
        collate_fn: Function that joins the list of the members' batches; `torch.cat` if None.
        prefetch: Argument of `ReplayBuffer`.
        pin_memory: Argument of `ReplayBuffer`.
        generator: Argument of `ReplayBuffer`.

    Raises:
        ArgumentError: If an argument is out of its range.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.replay import LazyTensorStorage, TensorDictReplayBuffer
        >>> one, two = (TensorDictReplayBuffer(storage=LazyTensorStorage(10)) for _ in range(2))
        >>> _ = one.extend(TensorDict(x=torch.zeros(5), batch_size=[5]))
        >>> _ = two.extend(TensorDict(x=torch.ones(8), batch_size=[8]))
        >>> both = ReplayBufferEnsemble(one, two, sample_from_all=True, batch_size=4)
        >>> both.sample()["x"].tolist(), len(both)
        ([0.0, 0.0, 1.0, 1.0], 13)
    """

    def __init__(  # noqa: PLR0913  the parts and options of a buffer
        self,
        *buffers: ReplayBuffer,
        storages: StorageEnsemble | None = None,
        samplers: SamplerEnsemble | None = None,
        writers: WriterEnsemble | None = None,
        p: Sequence[float] | Tensor | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        batch_size: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        prefetch: int | None = None,
        pin_memory: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        owner = type(self).__name__
        if storages is not None and samplers is not None and writers is not None and not buffers:
            lengths = {len(storages.storages), len(samplers.samplers), len(writers.writers)}
            if len(lengths) > 1:
                raise ArgumentError(f"{owner}: storages, samplers and writers have different numbers of members")
            if p is not None or sample_from_all or num_buffer_sampled is not None:
                raise ArgumentError(f"{owner}: p and the options after it are arguments of the SamplerEnsemble here")
            parts = zip(storages.storages, samplers.samplers, writers.writers, strict=True)
            buffers = tuple(ReplayBuffer(storage=one, sampler=two, writer=three) for one, two, three in parts)
        elif not buffers or any(part is not None for part in (storages, samplers, writers)):
            raise ArgumentError(f"{owner}: pass buffers, or storages=, samplers= and writers=, and not both")
        for buffer in buffers:
            if not isinstance(buffer, ReplayBuffer) or buffer.prefetch or buffer.shared:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ArgumentError(
                    f"{owner}: members are buffers of this process without prefetch, got {buffer!r}; give the ensemble"
                    " prefetch= instead"
                )
        self.buffers: Final = buffers
        if storages is None or samplers is None or writers is None:
            storages = StorageEnsemble(*(buffer.storage for buffer in buffers))
            samplers = SamplerEnsemble(
                *(buffer.sampler for buffer in buffers),
                p=p,
                sample_from_all=sample_from_all,
                num_buffer_sampled=num_buffer_sampled,
            )
            writers = WriterEnsemble(*(buffer.writer for buffer in buffers))
        self._members: Final = storages
        self._mixture: Final = samplers
        self._annotates: Final = all(isinstance(buffer, TensorDictReplayBuffer) for buffer in buffers)
        super().__init__(
            storage=storages,
            sampler=samplers,
            writer=writers,
            batch_size=batch_size,
            transform=transform,
            collate_fn=join if collate_fn is None else collate_fn,
            prefetch=prefetch,
            pin_memory=pin_memory,
            generator=generator,
        )

    _fields_of_state = _STATE
    _twins: Sequence[ReplayBuffer] = ()  # of the members, in a twin
    _reads_at_once = True  # a write to a member does not wait for the batches of the ensemble

    def __getitem__(self, index: Any) -> Any:
        """Return the member `index`, an integer.

        Raises:
            IndexError: If there is no such member.
        """
        if not isinstance(index, int) or not -len(self.buffers) <= index < len(self.buffers):
            raise IndexError(f"{type(self).__name__} has members 0 to {len(self.buffers) - 1}, got {index!r}")
        return self.buffers[index]

    def __setitem__(self, index: Any, data: Any) -> None:
        """Reject: rows are replaced in a member.

        Raises:
            ContractError: Always.
        """
        raise ContractError(f"{type(self).__name__}: replace rows of a member, ensemble[0][{index!r}] = rows")

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Reject: rows are sampled by the samplers of the members.

        Raises:
            ArgumentError: Always.
        """
        raise ArgumentError(
            f"{type(self).__name__}: a {type(sampler).__name__} is set in a member, ensemble[0].set_sampler(sampler);"
            " for other shares of the members make a new ensemble"
        )

    def query(
        self, predicate: Callable[[Trajectory], bool] | None = None, *, trajectory_key: NestedKey | None = None
    ) -> list[Trajectory]:
        """Return what `ReplayBuffer.query` returns of each member, one member after the other."""
        return [one for buffer in self.buffers for one in buffer.query(predicate, trajectory_key=trajectory_key)]

    def empty(self) -> None:
        """Remove all rows of all members.

        Raises:
            ContractError: If the writer of a member rejects.
        """
        with self._lock:
            for buffer in self.buffers:
                buffer.empty()
            self._flight.clear()
            self._transforms.empty()

    def update_priority(self, index: Tensor, priority: Tensor) -> None:
        """Set the priorities ``[n]`` of rows ``[n]``, in the numbering of the ensemble's samples.

        Raises:
            ContractError: If the sampler of a member has no priorities.
        """
        for number, positions, local in self._members.locate(index.reshape(-1)):
            self.buffers[number].update_priority(local, priority[positions.to(priority.device)])

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Update the priorities of members that have some; see `TensorDictReplayBuffer.update_tensordict_priority`.

        Reads ``index`` ``[n]`` and the `priority_key` of each member.

        Raises:
            ContractError: If an entry is missing, or a member is no `TensorDictReplayBuffer`.
        """
        index = data.get(INDEX, None)
        if index is None or not self._annotates:
            raise ContractError(
                f"{type(self).__name__}: expected a sample with 'index' of an ensemble of TensorDictReplayBuffers; use"
                " update_priority(index, priority) for others"
            )
        for number, positions, local in self._members.locate(index):
            buffer = self.buffers[number]
            if isinstance(buffer, TensorDictReplayBuffer) and buffer.has_priorities:
                buffer.update_tensordict_priority(data[positions].set(INDEX, local))

    def dumps(self, path: str | Path) -> None:
        """Write a checkpoint of all members into the folder `path`; see `ReplayBuffer.dumps`."""
        with self._lock:
            save(Path(path) / FILE, self._state_of([one.view_state() for one in self._saved]))

    def state_dict(self) -> dict[str, Any]:
        """State of all members, and of the ensemble."""
        with self._lock:
            return self._state_of([one.state_dict() for one in self._saved])

    @property
    def _saved(self) -> Sequence[ReplayBuffer]:
        """The members whose rows are part of a state."""
        return self.buffers

    def _state_of(self, members: list[dict[str, Any]]) -> dict[str, Any]:
        rest = self._state({})
        return {**{name: rest[name] for name in _STATE if name != "members"}, "members": members}

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:  # noqa: ARG002  its members know them
        fields = self._fields(state)
        states = fields.items("members")
        if len(states) != len(self._saved):
            fields.fail(f"it has {len(states)} members, the ensemble has {len(self._saved)}")
        self._twins = [buffer.twin(part) for buffer, part in zip(self._saved, states, strict=True)]
        self._read_rest(fields, None)

    def adopt(self, twin: Self) -> None:
        """Continue as `twin`; the members stay the same objects."""
        parts = [(self._transforms, twin._transforms), *zip(self._saved, twin._twins, strict=True)]
        adopt_all(type(self).__name__, parts)
        self._adopt_rest(twin)

    def _counts(self, size: int, generator: torch.Generator | None) -> list[int]:
        """Rows of a batch that each member contributes."""
        return self._mixture.split(size, generator)

    def _select(self, size: int, generator: torch.Generator | None = None) -> tuple[Tensor, dict[Any, Any]]:
        own = self.generator if self.generator is not None else generator
        parts: list[tuple[int, Tensor, dict[Any, Any]]] = []
        for number, count in enumerate(self._counts(size, own)):
            if count:
                buffer = self.buffers[number]
                if not len(buffer):
                    raise ContractError(
                        f"{type(self).__name__}: member {number} is empty, and {count} rows of a batch are sampled from"
                        " it; write rows, or give it the probability 0"
                    )
                parts.append((number, *buffer._select(count, own)))  # noqa: SLF001  a member
        index = torch.cat([index.reshape(-1).cpu() + self._members.offsets[number] for number, index, _ in parts])
        return index, {_PARTS: parts}

    def _read(self, index: Tensor, info: dict[Any, Any]) -> Any:  # noqa: ARG002  members have their own
        return [self.buffers[number]._read(rows, known) for number, rows, known in info[_PARTS]]  # noqa: SLF001  a member

    def _finish(self, rows: Any, index: Tensor, info: dict[Any, Any]) -> Batch:
        batches: list[Any] = []
        parts: list[tuple[int, Tensor, dict[Any, Any]]] = []
        for (number, own, known), found in zip(info[_PARTS], rows, strict=True):
            batch, done = self.buffers[number]._finish(found, own, known)  # noqa: SLF001  a member
            batches.append(batch)
            parts.append((number, own, done))
        index, info = merged(self._members, parts)
        data = self._collate(batches)
        if self._annotates and isinstance(data, TensorDictBase) and data.batch_size[:1] == index.shape:
            for key, value in ((INDEX, index), (BUFFER_IDS, info[BUFFER_IDS])):
                data.set(key, value.view(-1, *[1] * (data.ndim - 1)).expand(data.batch_size))
        data = self._transforms.read(data)
        return data.pin_memory() if self._pin_memory else data, {INDEX: index, **info}
