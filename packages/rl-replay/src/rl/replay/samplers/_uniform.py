"""Uniform sampling with replacement."""

from __future__ import annotations

from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.errors import ArgumentError, ContractError
from rl.core.interfaces import Storage
from rl.replay._arguments import check_replacement, check_rows
from rl.replay._indices import IndexSet, Longs, distinct
from rl.replay._state import Fields
from rl.replay.samplers._base import SamplerBase


@final
class RandomSampler(SamplerBase):
    """Uniform sampler with replacement: each row of a batch is any stored row, with the same probability.

    Args:
        replacement: Only True; `SamplerWithoutReplacement` samples without.

    Raises:
        ArgumentError: If `replacement` is False.

    Example:
        >>> from rl.replay.storages import TensorStorage
        >>> index, info = RandomSampler().sample(TensorStorage(torch.arange(5)), 100)
        >>> index.shape, bool((index < 5).all()), info
        (torch.Size([100]), True, {})
    """

    def __init__(self, *, replacement: bool = True) -> None:
        check_replacement("RandomSampler", "SamplerWithoutReplacement", replacement=replacement)

    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sample indices ``[batch_size]`` int64.

        Raises:
            ContractError: If the storage is empty.
            ArgumentError: If `batch_size` is below 1.
        """
        rows = check_rows("RandomSampler", storage, batch_size)
        if generator is None:
            return torch.randint(rows, (batch_size,), device="cpu"), {}
        return torch.randint(rows, (batch_size,), generator=generator, device=generator.device), {}

    def __repr__(self) -> str:
        return "RandomSampler()"


@final
class SamplerWithoutReplacement(SamplerBase):
    """Sampler in passes over the storage: each pass samples every row exactly once.

    Args:
        drop_last: Whether to leave out the last batch of a pass if it has fewer than `batch_size` rows.
        shuffle: Whether each pass has a new random order; otherwise it has the order of the storage.

    Writing rows begins a new pass. `ran_out` is true when the last sample ended a pass.

    Example:
        >>> from rl.replay.storages import TensorStorage
        >>> sampler, storage = SamplerWithoutReplacement(shuffle=False), TensorStorage(torch.arange(5))
        >>> [sampler.sample(storage, 2)[0].tolist() for _ in range(4)]
        [[0, 1], [2, 3], [4], [0, 1]]
    """

    def __init__(self, *, drop_last: bool = False, shuffle: bool = True) -> None:
        self.drop_last: Final = drop_last
        self.shuffle: Final = shuffle
        self._order: Tensor | None = None
        self._position = 0

    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return the next indices of the pass, ``[batch_size]`` int64; fewer at its end unless `drop_last`.

        Raises:
            ContractError: If the storage is empty.
            ArgumentError: If `batch_size` is below 1, or with `drop_last` above the number of rows.
        """
        rows = check_rows("SamplerWithoutReplacement", storage, batch_size)
        if self.drop_last and batch_size > rows:
            raise ArgumentError(
                f"SamplerWithoutReplacement: drop_last leaves nothing of {rows} rows in batches of {batch_size}; "
                "use a smaller batch or drop_last=False"
            )
        order = self._order
        if order is not None and self.drop_last and self._position + batch_size > len(order):
            order = None  # the batch size has grown within a pass: the rest of the pass is dropped
        if order is None:
            order = self._new_order(rows, generator)
            self._position = 0
        index = order[self._position : self._position + batch_size]
        self._position += len(index)
        left = len(order) - self._position
        self.ran_out = left == 0 or (self.drop_last and left < batch_size)
        self._order = None if self.ran_out else order
        return index.clone(), {}

    def extended(self, index: Tensor, data: Any) -> None:  # noqa: ARG002  the protocol names them
        """Begin a new pass."""
        self.restart()

    def restart(self) -> None:
        """Begin a new pass with the next sample."""
        self._order, self._position, self.ran_out = None, 0, False

    def empty(self) -> None:
        """Begin a new pass with the next sample."""
        self.restart()

    def state_dict(self) -> dict[str, Any]:
        """Return the order of the pass and the position in it."""
        return {
            "drop_last": self.drop_last,
            "shuffle": self.shuffle,
            "order": None if self._order is None else self._order.clone(),
            "position": self._position,
            "ran_out": self.ran_out,
        }

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:
        fields = Fields("SamplerWithoutReplacement", state, ("drop_last", "shuffle", "order", "position", "ran_out"))
        fields.match(drop_last=self.drop_last, shuffle=self.shuffle)
        self.ran_out, self._order = fields.flag("ran_out"), None
        if fields["order"] is not None:
            limit = max_size if rows is None else rows
            self._order = fields.indices("order", high=2**63 - 1 if limit is None else limit).clone()
            if self.ran_out or self._order.unique().numel() < len(self._order):
                fields.fail("the order of its pass repeats a row, or the pass has ended")
        self._position = fields.integer("position", high=None if self._order is None else len(self._order) - 1)

    def __repr__(self) -> str:
        return f"SamplerWithoutReplacement(drop_last={self.drop_last}, shuffle={self.shuffle})"

    def _new_order(self, rows: int, generator: torch.Generator | None) -> Tensor:
        if not self.shuffle:
            return torch.arange(rows, device="cpu")
        if generator is None:
            return torch.randperm(rows, device="cpu")
        return torch.randperm(rows, generator=generator, device=generator.device)


@final
class ConsumingSampler(SamplerBase):
    """Uniform sampler that samples each row a given number of times, until it is overwritten.

    A batch has different rows, and fewer if fewer are left. A buffer with this sampler has the length of the rows that
    are left, and its `RoundRobinWriter` overwrites consumed rows before it continues in the ring, so that a queue of a
    few batches between a writer and a learner loses no row. `ran_out` is true when no row is left.

    Args:
        max_sample_count: Number of samples after which a row is consumed.

    Raises:
        ArgumentError: If an argument is out of its range.

    Example:
        >>> from rl.replay import ListStorage, ReplayBuffer
        >>> buffer = ReplayBuffer(storage=ListStorage(10), sampler=ConsumingSampler(), batch_size=3)
        >>> buffer.extend([torch.tensor(i) for i in range(4)])
        tensor([0, 1, 2, 3])
        >>> first = buffer.sample()
        >>> len(buffer), sorted([*first.tolist(), *buffer.sample().tolist()])
        (1, [0, 1, 2, 3])
    """

    prefetchable = False
    """A prefetched batch is consumed when it is sampled, and would be lost if it is discarded."""

    def __init__(self, max_sample_count: int = 1) -> None:
        self.max_sample_count: Final = as_integer(max_sample_count, "ConsumingSampler", "max_sample_count", 1)
        self.empty()

    def available(self, storage: Storage) -> int:
        """Return the number of rows that are left."""
        self._catch_up(storage)
        return len(self._left)

    def expired(self, count: int) -> Tensor:
        """Up to `count` consumed rows, int64, for a writer to overwrite."""
        return torch.from_numpy(self._consumed.members[:count].copy())

    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sample different indices int64 ``[n]``, n at most `batch_size`.

        Raises:
            ContractError: If the storage is empty, or all rows are consumed.
            ArgumentError: If `batch_size` is below 1.
        """
        rows = check_rows("ConsumingSampler", storage, batch_size)
        self._catch_up(storage)
        left = len(self._left)
        if not left:
            raise ContractError(
                f"ConsumingSampler: all {rows} rows were sampled {self.max_sample_count} time(s); write new rows before"
                " sampling, or wait until len(buffer) is above 0"
            )
        count = min(batch_size, left)
        device = "cpu" if generator is None else generator.device
        if 4 * count >= left:
            places = torch.randperm(left, generator=generator, device=device)[:count].cpu().numpy()
        else:
            places = distinct(lambda n: torch.randint(left, (n,), generator=generator, device=device), count)
        index = self._left.members[places]
        self._counts[index] += 1
        used = index[self._counts[index] >= self.max_sample_count]
        over = np.ones(len(used), np.bool_)
        self._left.update(used, ~over)
        self._consumed.update(used, over)
        self.ran_out = not len(self._left)
        return torch.from_numpy(index), {}

    def extended(self, index: Tensor, data: Any) -> None:  # noqa: ARG002  the protocol names them
        """Rows that were just written may be sampled."""
        self._renew(index.reshape(-1).cpu().numpy())

    def empty(self) -> None:
        """Forget all rows."""
        self.ran_out = False
        self._counts: Longs = np.zeros(0, np.int64)  # samples of each row
        self._left, self._consumed = (IndexSet(np.zeros(0, np.int64)) for _ in range(2))
        self._rows = 0  # the first ones, which are in one of both sets

    def state_dict(self) -> dict[str, Any]:
        """How often each row was sampled, and which rows are left."""
        sets = {"left": self._left, "consumed": self._consumed}
        return {
            "max_sample_count": self.max_sample_count,
            "counts": torch.from_numpy(self._counts[: self._rows].copy()),
            **{name: torch.from_numpy(rows.members.copy()) for name, rows in sets.items()},
            "ran_out": self.ran_out,
        }

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:
        fields = Fields("ConsumingSampler", state, ("max_sample_count", "counts", "left", "consumed", "ran_out"))
        fields.match(max_sample_count=self.max_sample_count)
        counts = fields.indices("counts", high=self.max_sample_count + 1).numpy().copy()
        limit = max_size if rows is None else rows
        if limit is not None and len(counts) > limit:
            fields.fail(f"it counts samples of {len(counts)} rows, for a storage with {limit}")
        sets: list[IndexSet] = []
        for name, of in (("left", counts < self.max_sample_count), ("consumed", counts >= self.max_sample_count)):
            members = fields.indices(name, high=len(counts)).numpy().copy()
            if not np.array_equal(np.sort(members), np.flatnonzero(of)):
                fields.fail(f"the rows of {name} do not fit counts")
            sets.append(IndexSet(members))
        self._left, self._consumed = sets
        self._counts, self._rows, self.ran_out = counts, len(counts), fields.flag("ran_out")

    def __repr__(self) -> str:
        return f"ConsumingSampler(max_sample_count={self.max_sample_count}, {len(self._left)} rows left)"

    def _catch_up(self, storage: Storage) -> None:
        """Add rows that were written past the buffer.

        Raises:
            ContractError: If rows were removed.
        """
        rows = len(storage)
        if rows < self._rows:
            raise ContractError(
                f"ConsumingSampler: counts samples of {self._rows} rows, and the storage has {rows} rows; empty or load"
                " the buffer, not only its storage"
            )
        if rows > self._rows:
            self._renew(np.arange(self._rows, rows))

    def _renew(self, rows: Longs) -> None:
        self._rows = max(self._rows, int(rows.max()) + 1)
        if self._rows > len(self._counts):
            grown = np.zeros(2 * self._rows, np.int64)
            grown[: len(self._counts)] = self._counts
            self._counts = grown
        self._counts[rows] = 0
        fresh = np.ones(len(rows), np.bool_)
        self._consumed.update(rows, ~fresh)
        self._left.update(rows, fresh)
        self.ran_out = False
