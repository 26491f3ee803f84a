"""Which keys the first batches through a buffer have, so that errors can say where one was dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, cast

from tensordict import TensorDictBase

from rl.core.provenance import keys_in, note_stage

__all__ = ["KeysOnTheWay"]


class KeysOnTheWay:
    """Notes the keys of the first batch that is written and of the first that is sampled; see `rl.core.provenance`.

    Args:
        who: class of the buffer, for messages.
        collate_fn: makes batches of rows; None for the buffer's own.
    """

    def __init__(self, who: str, collate_fn: Callable[[Any], Any] | None) -> None:
        self._who: Final = who
        self._collate: Final = collate_fn
        self.stored = self.sampled = False
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {"_who": self._who, "_collate": self._collate}  # nothing is known of a copy yet

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_who"], state["_collate"])

    def of_batch(self, data: Any) -> None:
        """Note those of a batch that was written."""
        self.stored = True
        note_stage(self, f"what {self._who} stores", keys_in(_row_of(data)))

    def of_sample(self, rows: Any, data: Any, transform: Callable[[Any], Any] | None) -> Any:
        """Note those of a sample; returns what `transform` makes of it.

        Args:
            rows: of the storage.
            data: the batch that was made of them.
            transform: of the buffer.
        """
        with self._lock:  # batches that are prepared beside each other: one after the other, until one is noted
            if not self.sampled:
                return self._noted(rows, data, transform)
        return data if transform is None else transform(data)

    def _noted(self, rows: Any, data: Any, transform: Callable[[Any], Any] | None) -> Any:
        keys = keys_in(data)
        if self._collate is not None:
            stored = keys_in(_row_of(rows))
            note_stage(self, f"the collate_fn of {self._who} ({_named(self._collate)})", stored, keys)
        note_stage(self, f"what {self._who} sampled", keys)
        if transform is not None:
            data = transform(data)
            if isinstance(data, TensorDictBase):
                note_stage(self, f"the transform of {self._who} ({_named(transform)})", keys, keys_in(data))
        self.sampled = True
        return data


def _row_of(data: Any) -> Any:
    """The first of a list of rows, or the batch."""
    return cast("list[Any]", data)[0] if isinstance(data, list) and data else data


def _named(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)
