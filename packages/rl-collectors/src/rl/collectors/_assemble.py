"""Assembly of the steps of a batch into one TensorDict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from rl.core.errors import ContractError, ShapeError
from rl.core.interfaces import Leaves
from rl.core.keys import NestedKey, as_tuple, key_str, next_key, unwrap
from rl.core.specs import set_group_sizes

__all__ = ["CHUNK", "Assembler", "check_keys", "place"]

CHUNK = 64
"""Steps that are kept as single tensors before they are stacked: few enough to stay in the cache. Measured on
CartPole: 44 microseconds a step with 64, 56 with 512."""

_SHORT = 8  # steps from which a shifted copy beats stacking
_LARGE = 4096  # elements from which writing with a stride beats an intermediate copy


class Assembler:
    """Assembler of one batch from chunks of steps.

    Stacking small tensors costs 0.1 microseconds each, writing each into a prepared batch 1.2. So each entry of a chunk
    is stacked into the batch at once. The keys of the first step are the keys of every batch.

    Args:
        batch_size: batch of the environment; time is the dimension after it.
        groups: batch sizes of groups, see `group_sizes`.

    Attributes:
        steps: number of appended steps.
        forms: shape and dtype of the entries of a step.
    """

    def __init__(self, batch_size: torch.Size, groups: Mapping[NestedKey, torch.Size] | None = None) -> None:
        self._groups = groups or {}
        self.root_keys: list[NestedKey] | None = None
        self.next_keys: list[NestedKey] = []
        self._batch_size = batch_size
        self._dim = len(batch_size)
        self.forms: dict[tuple[str, ...], tuple[torch.Size, torch.dtype]] = {}  # shape and dtype at the first step
        self.begin(0)

    def begin(self, steps: int) -> None:
        """Start a batch of `steps` steps."""
        self._steps = steps
        self.steps = 0
        self._columns: dict[tuple[str, ...], Any] = {}

    def add(self, roots: Sequence[Leaves], nexts: Sequence[Leaves]) -> None:
        """Append steps: root entries, and entries under ``next``.

        Raises:
            ContractError: if a step lacks an entry that the first one had, or has one that it had not.
            ShapeError: if an entry does not begin with the environment's batch size, or changes its shape.
        """
        if self.root_keys is None:
            self.root_keys, self.next_keys = _public(roots[0]), _public(nexts[0])
        for key in self.next_keys:
            self._append(("next", *as_tuple(key)), self._column(nexts, key, ("next",)))
        for key in self.root_keys or ():
            leaves = self._column(roots, key, ())
            if not self._shift(key, leaves, nexts):
                self._append(as_tuple(key), leaves)
        self._refuse_new_keys(roots[-1], nexts[-1])
        self.steps += len(roots)

    def entries(self) -> dict[str, Any]:
        """Return the batch as nested dictionaries of ``[*B, T, ...]``, with T the number of appended steps."""
        out: dict[str, Any] = {}
        taken = (slice(None),) * self._dim + (slice(self.steps),)  # fewer than planned if the batch ended early
        for path, column in self._columns.items():
            whole = torch.stack(column, self._dim) if isinstance(column, list) else column
            place(out, path, whole if self.steps == self._steps else whole[taken])
        self._columns = {}
        return out

    def tensordict(self, entries: dict[str, Any]) -> TensorDict:
        """Return the batch ``[*B, T]`` with the last dimension named ``time``."""
        names: Any = [*[None] * self._dim, "time"]
        batch = TensorDict(entries, batch_size=(*self._batch_size, self.steps), names=names)
        for part in (batch, batch.get("next", None)) if self._groups else ():
            set_group_sizes(part, self._groups, self._dim)
        return batch

    def _column(self, rows: Sequence[Leaves], key: NestedKey, under: tuple[str, ...]) -> list[Tensor]:
        try:
            return [row[key] for row in rows]
        except KeyError:
            at = next(i for i, row in enumerate(rows) if key not in row)
            raise ContractError(
                f"step {self.steps + at} of this batch lacks {key_str((*under, *as_tuple(key)))}, which the first step"
                " of this collector had: a policy and an environment must write the same entries at every step"
            ) from None

    def _append(self, path: tuple[str, ...], leaves: list[Any]) -> None:
        first = leaves[0]
        if path not in self.forms:
            if not isinstance(first, Tensor):  # strings and the like
                self._columns.setdefault(path, []).extend(leaves)
                return
            if first.shape[: self._dim] != self._batch_size:
                raise ShapeError(
                    f"{key_str(path)} has shape {tuple(first.shape)}, expected one that begins with the"
                    f" environment's batch size {tuple(self._batch_size)}: one row for each environment"
                )
            self.forms[path] = (first.shape, first.dtype)
        shape, dtype = self.forms[path]
        try:
            alike = first.shape == shape and {leaf.dtype for leaf in leaves} == {dtype}
            if alike:  # torch.stack refuses other shapes by itself, and casts other dtypes
                self._write(path, leaves)
        except (AttributeError, RuntimeError, TypeError):
            self._refuse_change(path, leaves)
            raise
        if not alike:
            self._refuse_change(path, leaves)

    def _write(self, path: tuple[str, ...], leaves: list[Tensor]) -> None:
        first, dim = leaves[0], self._dim
        column = self._columns.get(path)
        if column is None:
            if len(leaves) == self._steps:
                self._columns[path] = torch.stack(leaves, dim)
                return
            column = self._new_column(path, first)
        rows = column.narrow(dim, self.steps, len(leaves))
        if dim == 0 or first.numel() >= _LARGE:
            torch.stack(leaves, dim, out=rows)
        else:
            rows.copy_(torch.stack(leaves, dim))

    def _refuse_change(self, path: tuple[str, ...], leaves: list[Any]) -> None:
        shape, dtype = self.forms[path]
        for at, leaf in enumerate(leaves):
            got = f"{tuple(leaf.shape)} {leaf.dtype}" if isinstance(leaf, Tensor) else type(leaf).__name__
            if got != f"{tuple(shape)} {dtype}":
                raise ShapeError(
                    f"{key_str(path)} became {got} at step {self.steps + at} of this batch, after {tuple(shape)}"
                    f" {dtype}: shapes and dtypes stay as they are"
                )

    def _new_column(self, path: tuple[str, ...], first: Tensor) -> Tensor:
        column = first.new_empty((*self._batch_size, self._steps, *first.shape[self._dim :]))
        self._columns[path] = column
        return column

    def _shift(self, key: NestedKey, leaves: list[Any], nexts: Sequence[Leaves]) -> bool:
        """Copy a root entry from the entry under ``next`` of the step before, and write only resets separately.

        Returns:
            Whether that was possible: if most root tensors are those under ``next`` of the step before.
        """
        dim, count, first = self._dim, len(leaves), leaves[0]
        source = self._columns.get(("next", *as_tuple(key)))
        if not isinstance(source, Tensor) or count < _SHORT or not isinstance(first, Tensor):
            return False
        fresh = [0, *[t for t in range(1, count) if leaves[t] is not nexts[t - 1][key]]]
        if 2 * len(fresh) > count or first.dtype != source.dtype:
            return False
        path = as_tuple(key)
        column = self._columns.get(path)
        if column is None:
            column = self._new_column(path, first)
        if column.shape != source.shape:
            return False
        rows = column.narrow(dim, self.steps, count)
        rows.narrow(dim, 1, count - 1).copy_(source.narrow(dim, self.steps, count - 1))
        index = torch.tensor(fresh).to(first.device, non_blocking=True)
        rows.index_copy_(dim, index, torch.stack([leaves[t] for t in fresh], dim))
        return True

    def _refuse_new_keys(self, root: Leaves, nxt: Leaves) -> None:
        # entries that a policy writes under next reach the root from the second step on: not new
        known = {*(self.root_keys or ()), *self.next_keys}
        new = [key for key in _public(root) if key not in known]
        new += [next_key(key) for key in _public(nxt) if key not in self.next_keys]
        if new:
            raise ContractError(
                f"this batch has {', '.join(map(key_str, new))}, which the first step of this collector had not:"
                " a policy and an environment must write the same entries at every step"
            )


def check_keys(prepared: Iterable[NestedKey], found: Iterable[NestedKey], owner: str) -> None:
    """Compare the entries of a batch with those that memory was prepared for.

    Raises:
        ContractError: if one is missing or new.
    """
    prepared, found = [*prepared], [*found]
    missing = [key_str(key) for key in prepared if key not in found]
    new = [key_str(key) for key in found if key not in prepared]
    if missing or new:
        lacks = f"lacks {', '.join(missing)}" if missing else ""
        has = f"has {', '.join(new)}, which the first one had not" if new else ""
        raise ContractError(
            f"{owner}: a later batch {' and '.join(filter(None, (lacks, has)))}: write the same entries in every batch,"
            " and assign a hook that adds or removes some before the first one"
        )


def place(tree: dict[str, Any], key: NestedKey, value: Any) -> None:
    """Put a value at a nested key of nested dictionaries."""
    *path, last = as_tuple(key)
    for part in path:
        tree = tree.setdefault(part, {})
    tree[last] = value


def _public(leaves: Iterable[NestedKey]) -> list[NestedKey]:
    """All keys but those whose last part begins with an underscore."""
    return [unwrap(key) for key in leaves if not as_tuple(key)[-1].startswith("_")]
