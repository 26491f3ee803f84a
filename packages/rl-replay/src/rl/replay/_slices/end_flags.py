"""Where trajectories end, read from a batch or from a storage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError
from rl.core.interfaces import Storage
from rl.core.keys import DONE, TERMINATED, TRAJ_IDS, TRUNCATED, NestedKey, key_str, next_key, unwrap

__all__ = ["Boundaries", "Marks", "read_columns"]

Marks = tuple[NDArray[np.bool_], NDArray[Any] | None]
"""Of each row, whether it is the last of its trajectory, and the name of the trajectory; None if rows have no names."""

_ENDS = (next_key(DONE), next_key(TERMINATED), next_key(TRUNCATED))
_IDS: tuple[NestedKey, ...] = (TRAJ_IDS, "episode")
_PART = 1 << 16  # rows of a storage of another package that are read at a time


class Boundaries:
    """Reads end flags and names of trajectories.

    Args:
        who: for messages.
        end_key: flag of the last step; if None, whichever there are of ``next``: ``done``, ``terminated``,
            ``truncated``.
        traj_key: name of the trajectory; if None, ``("collector", "traj_ids")`` or ``"episode"`` where there is one.
    """

    def __init__(self, who: str, end_key: NestedKey | None, traj_key: NestedKey | None) -> None:
        self.who: Final = who
        self.ends: Final[tuple[NestedKey, ...]] = _ENDS if end_key is None else (unwrap(end_key),)
        self.ids: Final[tuple[NestedKey, ...]] = _IDS if traj_key is None else (unwrap(traj_key),)
        self._named: Final = [unwrap(key) for key in (end_key, traj_key) if key is not None]

    def of_batch(self, data: Any, lead: Sequence[int]) -> Marks:
        """Of a batch whose first dimensions `lead` count rows, or of a list of rows.

        Raises:
            ContractError: if it says nowhere where a trajectory ends, or lacks a key that was named.
        """
        if isinstance(data, TensorDictBase):
            if data.batch_dims > len(lead):
                self._refuse_longer(f"the batch has shape {list(data.batch_size)}", lead)
            return self._marks(lambda key: data.get(key, None), lead, data)
        rows = data if isinstance(data, (list, tuple)) else []
        first: Any = rows[0] if rows else data
        if not rows or not all(isinstance(row, TensorDictBase) for row in rows):
            raise ContractError(
                f"{self.who} reads where trajectories end under {self._wanted()}, and rows of type"
                f" {type(first).__name__} have no entries: store TensorDicts"
            )
        if first.batch_dims:
            self._refuse_longer(f"a row has shape {list(first.batch_size)}", lead)

        def stacked(key: NestedKey) -> Tensor | None:
            cells = [row.get(key, None) for row in rows]
            missing = sum(cell is None for cell in cells)
            if 0 < missing < len(cells):
                raise ContractError(
                    f"{self.who}: {missing} of {len(cells)} rows lack {key_str(key)}, the others have it"
                )
            return None if missing else torch.stack(cells)

        return self._marks(stacked, lead, first)

    def of_storage(self, storage: Storage) -> Marks:
        """Of all rows of a storage, in the order of their indices.

        Raises:
            ContractError: as `of_batch`.
        """
        columns = read_columns(storage, [*self.ends, *self.ids], None)
        return self._marks(columns.get, (len(storage),), storage)

    def _marks(self, get: Callable[[NestedKey], Any], lead: Sequence[int], source: Any) -> Marks:
        ends = {key: value for key in self.ends if (value := get(key)) is not None}
        ids = next(((key, value) for key in self.ids if (value := get(key)) is not None), None)
        missing = [key for key in self._named if key not in ends and (ids is None or key != ids[0])]
        if missing or not (ends or ids):
            self._refuse(missing, source)
        count = lead[0] if len(lead) == 1 else torch.Size(lead).numel()
        last: NDArray[np.bool_] | None = None
        for key, value in ends.items():
            flag = self._column(key, value, lead, count)
            flag = flag if flag.dtype == np.bool_ else flag.astype(np.bool_)
            last = flag if last is None else last | flag
        if last is None:
            last = np.zeros(count, np.bool_)
        return last, None if ids is None else self._column(*ids, lead, count)

    def _column(self, key: NestedKey, value: Any, lead: Sequence[int], count: int) -> NDArray[Any]:
        if type(value) is Tensor and value.dtype is torch.bool and value.is_cpu and value.numel() == count:
            flags: NDArray[Any] = value.numpy().reshape(-1)  # nearly all are such
            return flags
        if not isinstance(value, Tensor):
            raise ContractError(f"{self.who}: {key_str(key)} is a {type(value).__name__}, expected a tensor")
        if value.numel() != count:
            self._refuse_longer(f"{key_str(key)} has shape {list(value.shape)}", lead)
        if value.requires_grad:
            value = value.detach()
        if value.dtype.is_floating_point:
            value = value.double()  # numpy does not know each kind
        array: NDArray[Any] = (value if value.is_cpu else value.cpu()).numpy()
        return array.reshape(-1)

    def _refuse_longer(self, found: str, lead: Sequence[int]) -> NoReturn:
        raise ContractError(
            f"{self.who}: {found} for {torch.Size(lead).numel()} rows, expected flags {list(lead)} or {[*lead, 1]}: a"
            " row is one step here. Store batches [environments, time] in a storage with ndim=2, or flatten them"
        )

    def _refuse(self, missing: Sequence[NestedKey], source: Any) -> None:
        keys = _keys_of(source)
        if missing:
            named = " and ".join(map(key_str, missing))
            raise ContractError(
                f"{self.who} reads {named}, and the rows have no such entry (they have: {keys}): name the one that they"
                " have, or leave end_key and traj_key out"
            )
        raise ContractError(
            f"{self.who} reads where trajectories end under {self._wanted()}, and the rows have neither (they have:"
            f" {keys}): keep one of them, or name another entry with end_key= or traj_key="
        )

    def _wanted(self) -> str:
        return f"{', '.join(map(key_str, self.ends))} (end_key) or {', '.join(map(key_str, self.ids))} (traj_key)"


def read_columns(storage: Any, keys: Sequence[NestedKey], index: Tensor | None) -> dict[NestedKey, Tensor]:
    """Entries of the rows under `index` ``[*n]``, or of all rows, of any storage; what is absent is left out."""
    if hasattr(storage, "columns"):
        return storage.columns(keys, index)
    wanted = torch.arange(len(storage), device="cpu") if index is None else index
    parts: list[dict[NestedKey, Tensor]] = []
    for part in wanted.reshape(-1).split(_PART):
        rows = storage.get(part)
        if isinstance(rows, list) and rows and all(isinstance(row, TensorDictBase) for row in rows):
            rows = torch.stack(rows)
        if not isinstance(rows, TensorDictBase):
            return {}
        cells = {key: rows.get(key, None) for key in keys}
        parts.append({key: cell for key, cell in cells.items() if isinstance(cell, Tensor)})
    if not parts:
        return {}
    merged = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    return {key: cell.reshape(*wanted.shape, *cell.shape[1:]) for key, cell in merged.items()}


def _keys_of(source: Any) -> str:
    if isinstance(source, TensorDictBase):
        found: list[Any] = list(source.keys(include_nested=True, leaves_only=True))
    else:
        layout = getattr(source, "layout", None)
        found = [] if layout is None else list(layout.columns)
    return ", ".join(key_str(key) if key else "plain tensors" for key in found) or "unknown entries"
