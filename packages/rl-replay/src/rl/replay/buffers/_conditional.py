"""Updates of stored rows that were not overwritten since they were sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError, ShapeError, SpecError
from rl.core.interfaces import Storage
from rl.core.keys import NestedKey, key_str, unwrap
from rl.replay.storages._rows import TensorRows

__all__ = ["ConditionalUpdateResult", "Patch"]


@dataclass(frozen=True)
class ConditionalUpdateResult:
    """Which rows `ReplayBuffer.update_if_present` has updated, in the order of its `index`.

    Args:
        updated: bool ``[n]``.
        version_rejected: rows that are still stored, with a newer version, or updated by another entry of the same
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
        owner: for messages.
        patch: of `ReplayBuffer.update_if_present`.
        index: rows, int64 ``[n]``.
        version_key: entry with the version of a row; None for no versions.
        version: new version of all rows or of each, ``[n]``.

    Raises:
        ContractError: if only one of `version_key` and `version` is given, or `patch` has the version.
        ShapeError: if an entry has not one value for each row.
    """

    def __init__(self, owner: str, patch: Any, index: Tensor, version_key: NestedKey | None, version: Any) -> None:
        self._owner, self._index = owner, index
        if (version_key is None) != (version is None):
            raise ContractError(f"{owner}: give both version_key and version, or neither")
        if isinstance(patch, TensorDictBase):
            patch = dict(patch.items(include_nested=True, leaves_only=True))
        if not isinstance(patch, Mapping) or not patch:
            raise ContractError(f"{owner}: patch is a mapping from entries to new values, got {patch!r}")
        self.cells: dict[NestedKey, Tensor] = {unwrap(key): torch.as_tensor(value) for key, value in patch.items()}
        self.version_key = None if version_key is None else unwrap(version_key)
        if self.version_key is not None:
            if self.version_key in self.cells:
                raise ContractError(f"{owner}: {key_str(self.version_key)} is the version; leave it out of patch")
            version = torch.as_tensor(version)
            self.cells[self.version_key] = version.expand(len(index)) if version.dim() == 0 else version
        for key, cell in self.cells.items():
            if not cell.dim() or len(cell) != len(index):
                raise ShapeError(f"{owner}: {key_str(key)} has shape {list(cell.shape)} for {len(index)} indices")

    def check(self, storage: Storage) -> None:
        """Compare the entries with a stored row.

        Raises:
            ContractError: if a row lacks one of them, or is not a TensorDict.
            SpecError: if a dtype differs.
            ShapeError: if a shape differs.
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
            storage.set(rows[writes], storage.as_batch(new, len(new)) if isinstance(storage, TensorRows) else new)
        return ConditionalUpdateResult(updated, rejected)
