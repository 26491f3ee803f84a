"""Several storages as one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NoReturn, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, ContractError
from rl.core.interfaces import Storage
from rl.core.keys import key_str
from rl.replay._state import StatefulGroup


@final
@foreign_arguments()
class StorageEnsemble(StatefulGroup):
    """Rows of several storages under one index: those of the k-th storage begin at the sum of the sizes before it.

    Read only: write to the members.

    Args:
        storages: Members, at least one.

    Raises:
        ArgumentError: If there is none, or one twice.

    Example:
        >>> from rl.replay.storages import TensorStorage
        >>> both = StorageEnsemble(TensorStorage(torch.arange(3)), TensorStorage(torch.arange(10, 12)))
        >>> len(both), both.offsets, both.get(torch.tensor([4, 0]))
        (5, (0, 3), tensor([11,  0]))
    """

    _members_as = "storages"

    def __init__(self, *storages: Storage) -> None:
        if not storages or len({id(one) for one in storages}) < len(storages):
            raise ArgumentError(f"StorageEnsemble: pass one or several different storages, got {len(storages)}")
        self.storages: Final = storages
        sizes = [one.max_size for one in storages]
        self.max_size: Final = sum(sizes)
        self.offsets: Final = (0, *accumulate(sizes[:-1]))
        """Index of the first row of each storage."""

    def __len__(self) -> int:
        return sum(map(len, self.storages))

    def count(self, data: Any) -> NoReturn:  # noqa: ARG002  the protocol names it
        """Reject.

        Raises:
            ContractError: Always.
        """
        self._reject()

    def locate(self, index: Tensor) -> list[tuple[int, Tensor, Tensor]]:
        """For each storage with rows in `index` ``[n]``: its number, the positions in `index`, and its own indices."""
        bounds = torch.tensor(self.offsets, device=index.device)
        member = torch.bucketize(index, bounds, right=True) - 1
        found: list[tuple[int, Tensor, Tensor]] = []
        for number in member.unique().tolist():
            if number < 0:
                raise IndexError(f"StorageEnsemble: index {int(index.min())} is negative")
            positions = (member == number).nonzero().squeeze(-1)
            found.append((number, positions, index[positions] - self.offsets[number]))
        return found

    def get(self, index: Tensor | int | slice) -> Any:
        """Return the rows under `index`, in its order; a slice also counts the indices of unwritten rows.

        Raises:
            IndexError: If an index is outside of the stored rows.
            ContractError: If rows of different storages have different entries.
        """
        if isinstance(index, slice):
            index = torch.arange(*index.indices(self.max_size), device="cpu")
        if isinstance(index, int):
            ((number, _, local),) = self.locate(torch.tensor([index], device="cpu"))
            return self.storages[number].get(int(local))
        parts = self.locate(index.reshape(-1))
        rows = join([self.storages[number].get(local) for number, _, local in parts])
        order = torch.cat([positions for _, positions, _ in parts]).argsort()
        if isinstance(rows, list):
            return [rows[position] for position in order.tolist()]
        rows = rows if len(parts) == 1 else rows[order]
        return rows.reshape(*index.shape, *rows.shape[1:])

    def set(self, index: Any, data: Any) -> NoReturn:  # noqa: ARG002  the protocol names them
        """Reject.

        Raises:
            ContractError: Always.
        """
        self._reject()

    def empty(self) -> None:
        """Remove the rows of all storages."""
        for one in self.storages:
            one.empty()

    def __repr__(self) -> str:
        return f"StorageEnsemble({', '.join(map(repr, self.storages))})"

    @staticmethod
    def _reject() -> NoReturn:
        raise ContractError("StorageEnsemble is read only: write to one of its storages, or to the buffer of it")


def join(parts: Sequence[Any]) -> Any:
    """Batches ``[n_k, ...]`` as one ``[sum(n_k), ...]``; lists of rows as one list.

    Raises:
        ContractError: If they have different entries.
    """
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, list) for part in parts):
        return [row for part in parts for row in part]
    try:
        return torch.cat([torch.stack(part) if isinstance(part, list) else part for part in parts])
    except (RuntimeError, KeyError, TypeError, ValueError) as error:
        raise ContractError(
            f"batches of different buffers cannot be joined: {_difference(parts)}. Give each buffer a transform that"
            " selects the common entries, ensemble[0].append_transform(lambda data: data.select(...)), or give the"
            " ensemble a collate_fn where it takes one"
        ) from error


def _difference(parts: Sequence[Any]) -> str:
    """Describe the difference between batches, in a few words."""
    if not all(isinstance(part, TensorDictBase) for part in parts):
        return "they are a " + ", a ".join(type(part).__name__ for part in parts)
    keys: list[set[Any]] = [{*part.keys(include_nested=True, leaves_only=True)} for part in parts]
    common = set.intersection(*keys)
    some = [key_str(key) for key in sorted(set.union(*keys) - common, key=key_str)]
    if some:
        return f"only some have {', '.join(some)}"
    found = {key: [list(part.get(key).shape[1:]) for part in parts] for key in sorted(common, key=key_str)}
    for key, shapes in found.items():
        if any(shape != shapes[0] for shape in shapes):
            return f"{key_str(key)} of a row is {' and '.join(map(str, shapes))}"
    return "their batches have the sizes " + " and ".join(str(list(part.batch_size)) for part in parts)
