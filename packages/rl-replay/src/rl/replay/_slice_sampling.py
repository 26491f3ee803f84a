"""Base of the slice samplers: arguments, selection of rows, and the flags of sampled slices.

Read top to bottom: `sample` splits the batch into slices, `_rows` places them in their trajectories and computes the
rows, `postprocess` sets the flags of the gathered batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.arguments import as_integer, constructor_setting
from rl.core.errors import ArgumentError, ContractError
from rl.core.interfaces import Storage
from rl.core.keys import DONE, INDEX, NEXT, TERMINATED, NestedKey, as_tuple, key_str, unwrap
from rl.replay._arguments import check_rows, to_device
from rl.replay._indices import IndexSet, Longs
from rl.replay._slice_table import TrajectoryTable, each_step
from rl.replay._trajectories import Boundaries, Trajectories, read_columns
from rl.replay._untraced import untraced

MASK: NestedKey = ("collector", "mask")
SLICES = "slices"
"""Key of the info of a sample: number of steps of each slice, int64 ``[num_slices]``."""
RUNS = "runs"
"""Key of the info of a sample: first row of each slice, if each has equally many rows that are adjacent in storage."""

Span = tuple[int, int]
"""How many steps of a slice may lie before the first step of its trajectory, and how many after the last one."""


class SlicesBase(Trajectories):
    """Samples slices; a subclass, also of `SamplerBase`, selects their trajectories. `SliceSampler` has the arguments.

    Raises:
        ArgumentError: If an argument is out of its range.
    """

    def __init__(
        self,
        num_slices: Any,
        slice_len: Any,
        *,
        keys: Mapping[str, NestedKey | None],
        end_keys: Any = None,
        strict_length: bool,
        pad_output: bool = False,
        span: Any = False,
    ) -> None:
        owner = type(self).__name__
        several = None if end_keys is None else list(end_keys) if isinstance(end_keys, Iterable) else []
        if several is not None and (not several or isinstance(end_keys, str) or keys["end_key"] is not None):
            raise ArgumentError(
                f"{owner}: end_keys is a list of keys, in the place of end_key, got {end_keys!r} and"
                f" end_key={keys['end_key']!r}"
            )
        for name, key in [*keys.items(), *(("end_keys", key) for key in several or ())]:
            parts: Any = (key,) if isinstance(key, str) else key
            is_key = isinstance(parts, (tuple, list)) and parts and all(isinstance(part, str) for part in parts)
            if not is_key and (key is not None or name == "end_keys"):
                raise ArgumentError(f"{owner}: {name} is a string or a tuple of strings, got {key!r}")
        if (num_slices is None) == (slice_len is None):
            raise ArgumentError(
                f"{owner}: pass exactly one of num_slices and slice_len, got num_slices={num_slices!r} and"
                f" slice_len={slice_len!r}: the batch size determines the other"
            )
        super().__init__(owner, Boundaries(owner, several or keys["end_key"], keys["traj_key"]))
        self._num_slices: Final = None if num_slices is None else as_integer(num_slices, owner, "num_slices", 1)
        self._slice_len: Final = None if slice_len is None else as_integer(slice_len, owner, "slice_len", 1)
        self._strict: Final = strict_length
        self._pad: Final = pad_output
        self._spans: Final = _span_pair(owner, span)
        if self._slice_len is not None:
            self._span(self._slice_len)
        truncated, init = keys["truncated_key"], keys["init_key"]
        self._truncated: Final = None if truncated is None else unwrap(truncated)
        parent = () if truncated is None else as_tuple(truncated)[:-1]
        self._done, self._terminated = unwrap((*parent, DONE)), unwrap((*parent, TERMINATED))
        self._init: Final = None if init is None else unwrap(init)
        self._names: Final = [None, "time"] if pad_output else ["time"]

    num_slices: Final[int | None] = constructor_setting("_num_slices")
    """Number of slices in a batch; None if `slice_len` determines it."""
    slice_len: Final[int | None] = constructor_setting("_slice_len")
    """Number of steps of a slice; None if `num_slices` determines it."""
    strict_length: Final[bool] = constructor_setting("_strict")
    """Whether only trajectories are sampled that have enough steps."""
    pad_output: Final[bool] = constructor_setting("_pad")
    """Whether samples are ``[num_slices, slice_len]``."""
    span: Final[tuple[bool | int, bool | int]] = constructor_setting("_spans")
    """Numbers of steps of a slice that may lie before and after its trajectory."""

    @property
    def batch_multiple(self) -> int:
        """What a batch size is a multiple of."""
        return self._num_slices or self._slice_len or 1

    def __repr__(self) -> str:
        given = f"slice_len={self._slice_len}" if self._num_slices is None else f"num_slices={self._num_slices}"
        options = f"strict_length={self._strict}, pad_output={self._pad}, span={self._spans}"
        return f"{self._owner}({given}, {options}, {self._known()})"

    def rows_by_trajectory(self, storage: Storage) -> tuple[Tensor, Tensor]:
        """All stored rows, one trajectory after the other, int64 ``[n]``, and which are the last of theirs, bool."""
        table = self.table_of(storage)
        numbers, step = each_step(0 * table.steps, table.steps)
        is_last = step == table.steps[numbers] - 1
        return torch.from_numpy(table.rows_of(numbers, step)), torch.from_numpy(is_last)

    def _split(self, storage: Storage, batch_size: int) -> tuple[int, int]:
        """Return the number of slices, and steps of each.

        Raises:
            ContractError: If the storage is empty.
            ArgumentError: If `batch_size` is not a multiple of the given number.
        """
        if batch_size < 1 or not len(storage):
            check_rows(self._owner, storage, batch_size)
        given = self._num_slices or self._slice_len
        assert given is not None
        if batch_size % given:
            name = "slice_len" if self._num_slices is None else "num_slices"
            raise ArgumentError(
                f"{self._owner}: batch_size={batch_size} is not a multiple of {name}={given}; use"
                f" {max(batch_size // given, 1) * given}, for example"
            )
        other = batch_size // given
        return (other, given) if self._num_slices is None else (given, other)

    def _span(self, length: int) -> Span:
        """Return steps of a slice of `length` that may lie before and after its trajectory.

        Raises:
            ArgumentError: If that is all of them.
        """
        left, right = (length - 1 if side is True else int(side) for side in self._spans)
        if max(left, right) >= length:
            raise ArgumentError(
                f"{self._owner}: span={max(left, right)} must be less than the {length} steps of a slice"
            )
        return left, right

    def _candidates(self, storage: Storage, length: int) -> tuple[TrajectoryTable, IndexSet]:
        """Return the table, and the trajectories that slices of `length` may be sampled from.

        Raises:
            ContractError: If there are none.
        """
        table = self.table_of(storage)
        candidates = table.at_least(length if self._strict else 1)
        if not len(candidates):
            raise ContractError(
                f"{self._owner}: none of the {len(table)} stored trajectories has {length} steps, the longest has"
                f" {int(table.steps.max(initial=0))}; sample shorter slices, or use strict_length=False"
            )
        return table, candidates

    def _rows(
        self,
        table: TrajectoryTable,
        numbers: IndexSet | Longs,
        count: int,
        length: int,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, dict[Any, Any]]:
        """Rows of `count` slices, each placed uniformly in its trajectory, and the info of the sample.

        Args:
            table: Table of the trajectories.
            numbers: Set from which each slice gets a trajectory, or one trajectory for each, int64 ``[count]``.
            count: Number of slices.
            length: Number of steps of a slice.
            generator: Source of randomness.
        """
        numbers, first, steps = self._places(table, numbers, count, length, generator)
        return self._rows_from(table, numbers, first, steps, length)

    def _places(
        self,
        table: TrajectoryTable,
        numbers: IndexSet | Longs,
        count: int,
        length: int,
        generator: torch.Generator | None,
    ) -> tuple[Longs, Longs, Longs]:
        """Trajectory, first step and number of steps of slices, each placed uniformly; see `_rows`."""
        device = "cpu" if generator is None else generator.device
        random = torch.rand(
            2 if isinstance(numbers, IndexSet) else 1, count, dtype=torch.float64, generator=generator, device=device
        )
        u: NDArray[np.float64] = random.cpu().numpy()
        if isinstance(numbers, IndexSet):
            numbers = numbers.members[(u[1] * len(numbers)).astype(np.int64)]
        return numbers, *place_slices(table.steps[numbers], u[0], length, self._span(length))

    def _rows_from(
        self, table: TrajectoryTable, numbers: Longs, first: Longs, steps: Longs, length: int
    ) -> tuple[Tensor, dict[Any, Any]]:
        """Rows of slices of at most `length` steps, and the info of the sample.

        Args:
            table: Table of the trajectories.
            numbers: Trajectory of each slice, int64 ``[n]``.
            first: Step of its trajectory at which each slice begins, int64 ``[n]``.
            steps: Number of steps of each slice, int64 ``[n]``.
            length: Number of steps of a slice, with `pad_output`.
        """
        info: dict[Any, Any] = {SLICES: torch.from_numpy(steps)}
        length = length if self._pad else int(steps.max())
        ahead = np.arange(length)
        if int(steps.min()) < length:
            given = ahead < steps[:, None]
            rows = table.rows_of(numbers, first[:, None] + np.minimum(ahead, steps[:, None] - 1))
            return torch.from_numpy(rows if self._pad else rows[given]), info
        rows = table.rows_of(numbers, first[:, None] + ahead)
        begin = rows[:, 0]
        if table.are_runs(numbers) and int(begin.max()) + length <= table.capacity:
            info[RUNS] = torch.from_numpy(begin.copy())
        return torch.from_numpy(rows if self._pad else rows.reshape(-1)), info

    @untraced
    def postprocess(self, data: Any, info: dict[Any, Any]) -> Any:
        """Set the flags of slices in a sampled batch, and add them to `info`; see `SliceSampler`.

        Reads the stored flags from `data`, a TensorDict ``[n]``, or ``[num_slices, slice_len]`` with `pad_output`; a
        batch of another kind is returned as it is. Removes ``slices`` and ``runs`` from `info`.

        Raises:
            ContractError: If `data` has another number of rows than ``info["index"]``, or an entry of another kind
                where a flag has to be set.
        """
        steps, index = info.pop(SLICES), info[INDEX]
        info.pop(RUNS, None)
        if not isinstance(data, TensorDictBase):
            return data
        lead = self._lead(data, index)
        first, last, mask = _edges(tuple(steps.tolist()), index.shape[1] if self._pad else None, data.device)
        first, last = first.view(*lead, 1), last.view(*lead, 1)
        flags: dict[NestedKey, Tensor] = {}
        if self._truncated is not None:
            flags = self._end_flags(data, last)
        if self._init is not None:
            init = _flag(data, self._init)
            if init is None:
                like = flags.get(self._truncated) if self._truncated is not None else None
                init = torch.zeros_like(first if like is None else like)
            flags[self._init] = _mark(init, first)
        if mask is not None:
            flags[MASK] = mask.clone().view(lead)
        info.update(flags)
        is_copy = not isinstance(data, TensorDict)  # lazy stacks return copies of their entries
        for key, flag in flags.items():
            if is_copy or data.get(key, None) is not flag:
                data.set(key, flag)
        at = len(self._names)
        if data.names[at - 1] is None and lead == index.shape:
            data.names = [*self._names, *data.names[at:]]
        return data

    def _lead(self, data: TensorDictBase, index: Tensor) -> torch.Size:
        """Return the dimensions of `data` that count rows.

        Raises:
            ContractError: If these are not the rows of `index`.
        """
        if data.batch_size[: index.dim()] == index.shape:
            return index.shape
        if data.numel() != index.numel():
            raise ContractError(
                f"{self._owner}: collate_fn returned a batch {list(data.batch_size)} for {index.numel()} rows, so that"
                " the flags of slices cannot be set. Keep the number of rows, and change it in `transform`"
            )
        return data.batch_size

    def _end_flags(self, data: TensorDictBase, last: Tensor) -> dict[NestedKey, Tensor]:
        """Return ``truncated``, ``done`` and ``terminated``, the first two also true at the last step of a slice."""
        assert self._truncated is not None
        keys = self._truncated, self._done, self._terminated
        truncated, done, terminated = (_flag(data, key) for key in keys)
        if done is None:
            known = [flag for flag in (truncated, terminated) if flag is not None]
            done = torch.stack(known).any(0) if known else torch.zeros_like(last)
        if truncated is None:
            truncated = torch.zeros_like(done)
        if terminated is None:
            terminated = done & ~(truncated.reshape(done.shape) if truncated.numel() == done.numel() else truncated)
        return dict(zip(keys, (_mark(truncated, last), _mark(done, last), terminated), strict=True))


def _span_pair(owner: str, span: Any) -> tuple[bool | int, bool | int]:
    pair = tuple(span) if isinstance(span, (tuple, list)) else (span, span)
    if len(pair) != 2:
        raise ArgumentError(
            f"{owner}: span is True, False, a number of steps, or a pair of these (before, after), got {span!r}"
        )
    before, after = (side if isinstance(side, bool) else as_integer(side, owner, "span", 0) for side in pair)
    return before, after


def place_slices(have: Longs, u: NDArray[np.float64], length: int, span: Span) -> tuple[Longs, Longs]:
    """First step of each slice, and how many steps it has; both int64 ``[n]``.

    A slice begins with equal probability at each step of its trajectory from which `length` steps are left. With a
    `span` it may also begin before the first step or end after the last one; steps outside are cut off. A shorter
    trajectory is taken as a whole.

    Args:
        have: Number of steps of the trajectory of each slice, int64 ``[n]``.
        u: Uniform numbers in [0, 1), float64 ``[n]``; multiples of 2^-53, so that no product is rounded up.
        length: Number of steps of a slice.
        span: Largest number of steps of a slice before and after its trajectory.

    Example:
        >>> place_slices(np.array([7]), np.array([0.99]), 4, (0, 0)), place_slices(
        ...     np.array([7]), np.array([0.99]), 4, (0, 2)
        ... )
        ((array([3]), array([4])), (array([5]), array([2])))
    """
    steps = np.minimum(have, length)
    if span == (0, 0):
        return (u * (have - steps + 1)).astype(np.int64), steps
    before, after = np.minimum(steps - 1, span[0]), np.minimum(steps - 1, span[1])
    begin = (u * (have - steps + before + after + 1)).astype(np.int64) - before
    end = np.minimum(begin + steps, have)
    begin = np.maximum(begin, 0)
    return begin, end - begin


def _flag(data: TensorDictBase, key: NestedKey) -> Tensor | None:
    """Return a stored flag as bool; None if there is none.

    Raises:
        ContractError: If there is a TensorDict under `key`, or a tensor above it.
    """
    found: Any = data.get(key, None)
    if isinstance(found, Tensor):
        return found.bool()
    parts = as_tuple(key)
    for depth in range(1, len(parts) + 1):
        above: Any = data.get(parts[:depth], None)
        if above is None:
            break
        if isinstance(above, Tensor) or depth == len(parts):
            kind = "tensor" if isinstance(above, Tensor) else "TensorDict"
            raise ContractError(f"rows cannot get an entry {key_str(key)}: {parts[depth - 1]!r} is a {kind} there")
    return None


def _mark(flag: Tensor, places: Tensor) -> Tensor:
    """`flag` ``[*n, ...]``, set to true in place where `places` ``[*n, 1]`` is."""
    dims = flag.dim() - places.dim()
    flag |= places if dims == 0 else places.reshape(*places.shape[:-1], *[1] * (dims + 1))
    return flag


@lru_cache(maxsize=8)
def _edges(
    steps: tuple[int, ...], padded: int | None, device: torch.device | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Where slices begin, where they end, and which rows are not padding, bool ``[n]``; read-only.

    Args:
        steps: Number of steps of each slice.
        padded: Length to which slices are padded; each row of padding begins and ends a slice. None for no padding.
        device: Device of the result.
    """
    if padded is not None:
        after = torch.arange(padded, device="cpu") - torch.tensor(steps, device="cpu").unsqueeze(1)
        first, last, mask = after >= 0, after >= -1, after < 0
        first[:, 0] = True
        flags = first.flatten(), last.flatten(), mask.flatten()
        return to_device(flags[0], device), to_device(flags[1], device), to_device(flags[2], device)
    ends = torch.tensor(steps, device="cpu").cumsum(0)
    first, last = torch.zeros(2, int(ends[-1]), dtype=torch.bool, device="cpu")
    first[0], first[ends[:-1]], last[ends - 1] = True, True, True
    return to_device(first, device), to_device(last, device), None


_ROWS = 1 << 16  # that are compared at a time


def check_slices(buffer: Any, keys: Sequence[NestedKey] = ("observation",)) -> None:
    """Validate that ``("next", key)`` of each row equals ``key`` of the next row of its trajectory.

    Call it once after filling a buffer: rows of several environments or rollouts that were stored one after the other
    without an end flag between them form slices that cross from one into the other. Data that differ by design
    (multi-step targets, noise added to stored observations) fail it, too.

    Args:
        buffer: Buffer with a slice sampler.
        keys: Keys of the entries to compare; rows have each of them, and have it under ``next``. NaN equals NaN.

    Raises:
        ArgumentError: If the buffer has no slice sampler.
        ContractError: If the entries of two consecutive rows differ, naming the first such row, or an entry is absent.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.replay import LazyTensorStorage, ReplayBuffer, SliceSampler
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(9), sampler=SliceSampler(slice_len=2))
        >>> x, done = torch.tensor([0.0, 1, 5, 6]), torch.tensor([False, True, False, True])
        >>> after = TensorDict(observation=x + 1, done=done, batch_size=[4])
        >>> _ = buffer.extend(TensorDict(observation=x, next=after, batch_size=[4]))
        >>> check_slices(buffer)
    """
    sampler, storage = buffer.sampler, buffer.storage
    if not isinstance(sampler, SlicesBase):
        raise ArgumentError(f"check_slices needs a buffer with a SliceSampler, got a {type(sampler).__name__}")
    rows, is_last = sampler.rows_by_trajectory(storage)
    for key in map(unwrap, keys):
        after = (NEXT, *as_tuple(key))
        for begin in range(0, len(rows) - 1, _ROWS):
            part = rows[begin : begin + _ROWS + 1]
            columns = read_columns(storage, [key, after], part)
            if len(columns) < 2:
                missing = ", ".join(key_str(name) for name in (key, after) if name not in columns)
                raise ContractError(f"check_slices: rows have no {missing}; name another entry with keys=")
            differs = _differ(columns[after][:-1], columns[key][1:]).cpu() & ~is_last[begin : begin + len(part) - 1]
            if differs.any():
                at = int(differs.nonzero()[0])
                raise ContractError(
                    f"check_slices: {key_str(after)} of row {int(part[at])} is not {key_str(key)} of row"
                    f" {int(part[at + 1])}, the next one of its trajectory. Store batches [environments, time] with"
                    " ndim=2, keep the trajectory ids that a collector writes, or set ('next', 'truncated') at the last"
                    " step of each rollout"
                )


def _differ(one: Tensor, other: Tensor) -> Tensor:
    """Which rows differ, bool ``[n]``."""
    if one.shape != other.shape:
        return torch.ones(len(one), dtype=torch.bool)
    differs = (one != other) & ~(one.isnan() & other.isnan())
    return differs.reshape(len(one), -1).any(1)
