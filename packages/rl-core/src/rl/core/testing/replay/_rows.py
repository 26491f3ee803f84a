"""Rows to store, and a storage that only has a length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from rl.core.errors import CheckError, RLError
from rl.core.testing._report import fail, require

__all__ = ["SIZE", "RowCount", "make_rows", "require_refused"]

SIZE = 8


class RowCount:
    """A storage that only has a length."""

    def __init__(self, rows: int, max_size: int = 64) -> None:
        self.rows, self.max_size = rows, max_size

    def __len__(self) -> int:
        return self.rows

    def grow(self, index: Tensor, owner: str) -> None:
        """Record that `index` was written."""
        new = sorted(int(row) for row in index if row >= self.rows)
        gapless = new == list(range(self.rows, self.rows + len(new)))
        require(gapless, f"claims {new} while the storage has {self.rows} rows; that leaves a gap", owner)
        self.rows += len(new)

    def count(self, data: Any) -> int:
        return len(data)

    def get(self, index: Any) -> Any:
        return index

    def set(self, index: Any, data: Any) -> None:
        raise NotImplementedError

    def empty(self) -> None:
        self.rows = 0

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rows = state["rows"]


def make_rows(start: int, stop: int) -> TensorDict:
    """Rows that hold their numbers."""
    number = torch.arange(start, stop)
    nested = TensorDict({"flag": (number % 2 == 0).unsqueeze(-1)}, batch_size=[len(number)])
    return TensorDict(
        {"number": number, "wide": number.float().unsqueeze(-1).expand(-1, 3), "next": nested},
        batch_size=[len(number)],
    )


def require_refused(call: Callable[[], object], what: str, owner: str, kind: type[Exception] = RLError) -> None:
    """Raise a `CheckError` unless the call raises `kind`."""
    try:
        call()
    except kind:
        return
    except Exception as error:
        reason = f"{what} raises {type(error).__name__} ({error}), expected {kind.__name__}"
        raise CheckError(f"{reason} ({owner})") from error
    fail(f"{what} is accepted; it must raise {kind.__name__}", owner)
