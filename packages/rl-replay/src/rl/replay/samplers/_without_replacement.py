"""Sampling in passes: every row exactly once before any row again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

import torch
from torch import Tensor

from rl.core.errors import ContractError
from rl.core.interfaces import Storage
from rl.core.state import reading
from rl.replay._arguments import check_rows
from rl.replay._state import Apply, Fields
from rl.replay.samplers._base import SamplerBase

__all__ = ["SamplerWithoutReplacement"]


@final
class SamplerWithoutReplacement(SamplerBase):
    """Sampler in passes over the storage: each pass samples every row exactly once.

    Args:
        drop_last: leave out the last batch of a pass if it has fewer than `batch_size` rows.
        shuffle: a new random order for each pass; otherwise the order of the storage.

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
        """The next indices of the pass, ``[batch_size]`` int64; fewer at its end unless `drop_last`.

        Raises:
            ContractError: if the storage is empty, `batch_size` is below 1, or with `drop_last` above the
                number of rows.
        """
        rows = check_rows("SamplerWithoutReplacement", storage, batch_size)
        if self.drop_last and batch_size > rows:
            raise ContractError(
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
        """The order of the pass and the position in it."""
        return {
            "drop_last": self.drop_last,
            "shuffle": self.shuffle,
            "order": None if self._order is None else self._order.clone(),
            "position": self._position,
            "ran_out": self.ran_out,
        }

    def prepare_load(self, state: Mapping[str, Any], rows: int | None = None, max_size: int | None = None) -> Apply:
        """Validate a state without applying it; see `Stateful.prepare_load`.

        Raises:
            CheckpointError: see `load_state_dict`.
        """
        owner = "SamplerWithoutReplacement"
        with reading(owner):
            fields = Fields(owner, state, ("drop_last", "shuffle", "order", "position", "ran_out"))
            fields.match(drop_last=self.drop_last, shuffle=self.shuffle)
            ran_out, order, count = fields.flag("ran_out"), None, 0
            if fields["order"] is not None:
                limit = max_size if rows is None else rows
                order = fields.indices("order", high=2**63 - 1 if limit is None else limit).clone()
                count = len(order)
                if ran_out or order.unique().numel() < count:
                    fields.fail("the order of its pass repeats a row, or the pass has ended")
            position = fields.integer("position", high=None if order is None else count - 1)

        def apply() -> None:
            self._order, self._position, self.ran_out = order, position, ran_out

        return apply

    def __repr__(self) -> str:
        return f"SamplerWithoutReplacement(drop_last={self.drop_last}, shuffle={self.shuffle})"

    def _new_order(self, rows: int, generator: torch.Generator | None) -> Tensor:
        if not self.shuffle:
            return torch.arange(rows, device="cpu")
        if generator is None:
            return torch.randperm(rows, device="cpu")
        return torch.randperm(rows, generator=generator, device=generator.device)
