"""Writer that keeps the rows with the largest values."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any, Final, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.contract import Key, missing_key_message
from rl.core.errors import ContractError, ShapeError, SpecError
from rl.core.interfaces import Storage
from rl.core.keys import NEXT, REWARD, NestedKey, key_str, leaf_keys, unwrap
from rl.core.state import reading
from rl.replay import _foreign
from rl.replay._slices.trajectories import read_columns
from rl.replay._state import Apply, Fields, Stateful

__all__ = ["TensorDictMaxValueWriter"]

_REDUCTIONS = ("max", "min", "mean", "median", "sum")


@final
@_foreign.fixed_writer
class TensorDictMaxValueWriter(Stateful):
    """Keeps the rows with the largest value of an entry: a full storage replaces its smallest by a larger new one.

    `extend` returns -1 as the index of a row that is not written. Of equal values the stored row stays. Rows of whole
    trajectories ``[n, T]`` with the default entry are kept by their returns.

    Args:
        rank_key: entry with the value of a row, ``[n, ...]``; ``("next", "reward")`` if None.
        reduction: of several values of a row: ``"sum"``, ``"max"``, ``"min"``, ``"mean"`` or ``"median"``.

    Raises:
        ContractError: if `reduction` is another one.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.replay import LazyTensorStorage, TensorDictReplayBuffer
        >>> writer = TensorDictMaxValueWriter(rank_key="score")
        >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(2), writer=writer)
        >>> buffer.extend(TensorDict(score=torch.tensor([1.0, 5.0, 3.0]), batch_size=[3])).tolist()
        [-1, 0, 1]
        >>> buffer.extend(TensorDict(score=torch.tensor([2.0, 4.0]), batch_size=[2])).tolist()
        [-1, 1]
        >>> buffer[:]["score"].tolist()
        [5.0, 4.0]
    """

    def __init__(self, rank_key: NestedKey | None = None, reduction: str = "sum") -> None:
        if reduction not in _REDUCTIONS:
            raise ContractError(
                f"TensorDictMaxValueWriter: reduction is one of {', '.join(_REDUCTIONS)}, got {reduction!r}"
            )
        self.rank_key: Final[NestedKey] = (NEXT, REWARD) if rank_key is None else unwrap(rank_key)
        self.reduction: Final = reduction
        self._storage: Storage | None = None
        self._ranked: list[tuple[float, int]] = []  # heap of value and row; the smallest value first
        self._removed: list[tuple[float, int]] = []  # of the rows that the selected ones replace
        self._added: list[tuple[float, int]] = []  # value and row of the selected ones

    def attach(self, storage: Storage) -> None:
        """Rank the rows that `storage` has, NaN below all others; called by the buffer that owns both.

        Raises:
            ContractError: if rows lack the entry.
        """
        self._storage, rows = storage, len(storage)
        if rows and len(self._ranked) != rows:
            found = read_columns(storage, [self.rank_key], None).get(self.rank_key)
            if found is None:
                raise ContractError(f"TensorDictMaxValueWriter: stored rows have no {key_str(self.rank_key)}")
            values = self._values(found)
            self._ranked = list(zip(values.masked_fill(values.isnan(), -torch.inf).tolist(), range(rows), strict=True))
            heapq.heapify(self._ranked)

    def rewritten(self, index: Tensor) -> None:  # noqa: ARG002  the protocol names it
        """Rank all rows again, of which some were replaced in place."""
        self.empty()
        if self._storage is not None:
            self.attach(self._storage)

    def select(self, storage: Storage, data: Any) -> Tensor:
        """Positions in a batch of the rows to write, int64 ``[m]``; `claim` returns their indices.

        Reads `rank_key`.

        Raises:
            ContractError: if the entry is absent, or the storage counts several dimensions.
            SpecError: if a value is NaN.
        """
        owner = "TensorDictMaxValueWriter"
        if getattr(storage, "ndim", 1) > 1:
            raise ContractError(f"{owner}: a value ranks a row, so that a storage with ndim=1 is needed")
        rows = data if isinstance(data, list) else [data]
        cells: list[Any] = [row.get(self.rank_key, None) if isinstance(row, TensorDictBase) else None for row in rows]
        for row, cell in zip(rows, cells, strict=True):
            if not isinstance(cell, Tensor):
                present = leaf_keys(row) if isinstance(row, TensorDictBase) else []
                raise ContractError(missing_key_message(owner, Key(self.rank_key, remedy="Name rank_key=."), present))
        values = self._values(torch.stack(cells) if isinstance(data, list) else cells[0])
        if bool(values.isnan().any()):
            raise SpecError(f"{owner}: {key_str(self.rank_key)} has NaN values; nothing was written")
        self._restore()
        free = iter(range(len(storage), storage.max_size))
        taken: dict[int, tuple[float, int]] = {}
        numbers = values.tolist()
        for position in values.argsort(descending=True, stable=True).tolist():
            value, row = numbers[position], next(free, None)
            if row is None:
                if not self._ranked or value <= self._ranked[0][0]:
                    break
                self._removed.append(heapq.heappop(self._ranked))
                row = self._removed[-1][1]
            taken[position] = (value, row)
        self._added = [taken[position] for position in sorted(taken)]
        return torch.tensor(sorted(taken), dtype=torch.int64, device="cpu")

    def claim(self, storage: Storage, count: int) -> Tensor:  # noqa: ARG002  the protocol names them
        """Indices of the rows of the last `select`, int64 ``[count]``.

        Raises:
            ContractError: if the rows were not selected.
        """
        if count < 1 or count != len(self._added):
            raise ContractError(
                f"TensorDictMaxValueWriter: {count} rows were not ranked: write with the `extend` of a buffer, which"
                " selects them by their values"
            )
        return torch.tensor([row for _, row in self._added], dtype=torch.int64, device="cpu")

    def extended(self, index: Tensor, data: Any) -> None:  # noqa: ARG002  the protocol names them
        """Rank the rows that were written."""
        for item in self._added:
            heapq.heappush(self._ranked, item)
        self._removed, self._added = [], []

    def empty(self) -> None:
        """Forget all rows."""
        self._ranked, self._removed, self._added = [], [], []

    def state_dict(self) -> dict[str, Any]:
        """The values of the rows, float64 ``[n]``."""
        self._restore()
        ranked = sorted(self._ranked, key=lambda item: item[1])
        return {
            "reduction": self.reduction,
            "values": torch.tensor([value for value, _ in ranked], dtype=torch.float64, device="cpu"),
        }

    def prepare_load(self, state: Mapping[str, Any], rows: int | None = None, max_size: int | None = None) -> Apply:  # noqa: ARG002
        """Validate a state without applying it; see `Stateful.prepare_load`.

        Raises:
            CheckpointError: if `state` is damaged, or of a writer for another storage.
        """
        owner = "TensorDictMaxValueWriter"
        with reading(owner):
            fields = Fields(owner, state, ("reduction", "values"))
            fields.match(reduction=self.reduction)
            values = fields.tensor("values", torch.float64, 1)
            if bool(values.isnan().any()) or (rows is not None and len(values) != rows):
                fields.fail(f"it has {len(values)} values for {rows} rows, or NaN values")
            ranked = list(zip(values.tolist(), range(len(values)), strict=True))

        def apply() -> None:
            self.empty()
            self._ranked = ranked
            heapq.heapify(self._ranked)

        return apply

    def __repr__(self) -> str:
        return f"TensorDictMaxValueWriter(rank_key={self.rank_key!r}, reduction={self.reduction!r})"

    def _restore(self) -> None:
        """Undo a selection whose rows were not written."""
        for item in self._removed:
            heapq.heappush(self._ranked, item)
        self._removed, self._added = [], []

    def _values(self, cell: Tensor) -> Tensor:
        """One value for each row, float64 ``[n]``."""
        if not cell.shape or not cell[0].numel():
            raise ShapeError(
                f"TensorDictMaxValueWriter: {key_str(self.rank_key)} is {list(cell.shape)}, expected values [n, ...]"
            )
        flat = cell.detach().reshape(len(cell), -1).double().cpu()
        if self.reduction == "median":
            return flat.median(-1).values
        return {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}[self.reduction](flat, -1)
