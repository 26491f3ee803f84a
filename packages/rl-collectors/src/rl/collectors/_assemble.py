"""Assembly of the steps of a batch into one TensorDict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, islice
from operator import attrgetter, is_not, itemgetter
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from rl.core.errors import ContractError, ShapeError
from rl.core.interfaces import Leaves
from rl.core.keys import NEXT, NestedKey, as_tuple, key_str, next_key, unwrap
from rl.core.specs import set_group_sizes

CHUNK = 64
"""Steps that are kept as single tensors before they are stacked: few enough to stay in the cache. Measured on
CartPole: 44 microseconds a step with 64, 56 with 512."""

_SHORT = 8  # steps from which a shifted copy beats stacking
_LARGE = 4096  # elements from which writing with a stride beats an intermediate copy


class _Entry:
    """An entry of a step, whose key is split once: at each chunk it is looked up, written and placed.

    Args:
        key: Key among the leaves of a step.
        under: Path in the batch under which the leaves stand: empty, or ``("next",)``.
    """

    __slots__ = ("key", "next_path", "path", "pick")

    def __init__(self, key: NestedKey, under: tuple[str, ...]) -> None:
        self.key = key
        self.path = (*under, *as_tuple(key))
        self.next_path = next_key(key)
        self.pick = itemgetter(key)  # in C, also for a key of several parts


class Assembler:
    """Assembler of one batch from chunks of steps.

    Stacking small tensors costs 0.1 microseconds each, writing each into a prepared batch 1.2. So each entry of a chunk
    is stacked into the batch at once. The keys of the first step are the keys of every batch.

    Args:
        batch_size: Batch size of the environment; time is the dimension after it.
        groups: Batch sizes of groups, see `group_sizes`.

    Attributes:
        steps: Number of appended steps.
        forms: Shape and dtype of the entries of a step, by path.
        root_keys: Keys of a step's root; None before the first step.
        next_keys: Keys of a step under ``next``.
    """

    def __init__(self, batch_size: torch.Size, groups: Mapping[NestedKey, torch.Size] | None = None) -> None:
        self._groups = groups or {}
        self._batch_size = batch_size
        self._dim = len(batch_size)
        self.forms: dict[tuple[str, ...], tuple[torch.Size, torch.dtype]] = {}
        self.expect_keys(None, ())
        self.start(0)

    def expect_keys(self, root_keys: Iterable[NestedKey] | None, next_keys: Iterable[NestedKey]) -> None:
        """Set the keys that every step has; those of the first step are used if `root_keys` is None."""
        self.root_keys = None if root_keys is None else list(root_keys)
        self.next_keys = list(next_keys)
        self._root_entries = [_Entry(key, ()) for key in self.root_keys or ()]
        self._next_entries = [_Entry(key, (NEXT,)) for key in self.next_keys]
        # entries that a policy writes under next reach the root from the second step on: not new
        self._known_root = {*(self.root_keys or ()), *self.next_keys}
        self._known_next = set(self.next_keys)

    def start(self, steps: int) -> None:
        """Start a batch of `steps` steps."""
        self._steps = steps
        self.steps = 0
        self._columns: dict[tuple[str, ...], Any] = {}

    def add(self, roots: Sequence[Leaves], nexts: Sequence[Leaves]) -> None:
        """Append steps: root entries, and entries under ``next``.

        Raises:
            ContractError: If a step lacks an entry that the first one had, or has one that it had not.
            ShapeError: If an entry does not begin with the environment's batch size, or changes its shape.
        """
        if self.root_keys is None:
            self.expect_keys(_public(roots[0]), _public(nexts[0]))
        try:
            self._append(self._next_entries, nexts)
            self._append(self._root_entries, roots, nexts)
        except KeyError:
            self._reject_missing(roots, nexts)
            raise
        if not (roots[-1].keys() <= self._known_root and nexts[-1].keys() <= self._known_next):
            self._reject_new(roots[-1], nexts[-1])
        self.steps += len(roots)

    def entries(self) -> dict[str, Any]:
        """Return the batch as nested dictionaries of ``[*B, T, ...]``, with T the number of appended steps."""
        out: dict[str, Any] = {}
        written = (slice(None),) * self._dim + (slice(self.steps),)  # fewer than planned if the batch ended early
        for (*groups, name), column in self._columns.items():
            tree = out
            for group in groups:
                tree = tree.setdefault(group, {})
            whole = torch.stack(column, self._dim) if isinstance(column, list) else column
            tree[name] = whole if self.steps == self._steps else whole[written]
        self._columns = {}
        return out

    def tensordict(self, entries: dict[str, Any]) -> TensorDict:
        """Return the batch ``[*B, T]`` with the last dimension named ``time``."""
        names: Any = [*[None] * self._dim, "time"]
        batch = TensorDict(entries, batch_size=(*self._batch_size, self.steps), names=names)
        for part in (batch, batch.get(NEXT, None)) if self._groups else ():
            set_group_sizes(part, self._groups, self._dim)
        return batch

    def _append(self, entries: Sequence[_Entry], rows: Sequence[Leaves], nexts: Sequence[Leaves] = ()) -> None:
        """Stack the leaves ``[*B, ...]`` of consecutive steps into the columns ``[*B, T, ...]`` of the batch.

        Args:
            entries: Entries that the steps have.
            rows: Leaves of the steps.
            nexts: Leaves under ``next`` of the same steps, from which a root entry may be copied.
        """
        count, dim, columns = len(rows), self._dim, self._columns
        shifts = len(nexts) >= _SHORT
        for entry in entries:
            path, leaves = entry.path, list(map(entry.pick, rows))
            if shifts and entry.next_path in columns and self._shift(entry, leaves, nexts):
                continue
            first = leaves[0]
            form = self.forms.get(path)
            if form is None:
                if not isinstance(first, Tensor):  # strings and the like
                    columns.setdefault(path, []).extend(leaves)
                    continue
                form = self._add_form(path, first)
            shape, dtype = form
            try:
                # torch.stack rejects other shapes by itself, but casts other dtypes
                if first.shape != shape or set(map(_dtype_of, leaves)) != {dtype}:
                    self._reject_change(path, leaves)
                column = columns.get(path)
                if column is None and count == self._steps:
                    columns[path] = torch.stack(leaves, dim)
                    continue
                column = self._new_column(path, first) if column is None else column
                written = column.narrow(dim, self.steps, count)
                if dim == 0 or first.numel() >= _LARGE:
                    torch.stack(leaves, dim, out=written)
                else:
                    written.copy_(torch.stack(leaves, dim))
            except (AttributeError, RuntimeError, TypeError):
                self._reject_change(path, leaves)
                raise

    def _add_form(self, path: tuple[str, ...], first: Tensor) -> tuple[torch.Size, torch.dtype]:
        if first.shape[: self._dim] != self._batch_size:
            raise ShapeError(
                f"{key_str(path)} has shape {tuple(first.shape)}, expected one that begins with the"
                f" environment's batch size {tuple(self._batch_size)}: one row for each environment"
            )
        self.forms[path] = form = (first.shape, first.dtype)
        return form

    def _new_column(self, path: tuple[str, ...], first: Tensor) -> Tensor:
        column = first.new_empty((*self._batch_size, self._steps, *first.shape[self._dim :]))
        self._columns[path] = column
        return column

    def _shift(self, entry: _Entry, leaves: list[Any], nexts: Sequence[Leaves]) -> bool:
        """Copy a root entry from the entry under ``next`` of the step before, and write only resets separately.

        Returns:
            Whether that was possible: if most root tensors are those under ``next`` of the step before.
        """
        dim, count, first = self._dim, len(leaves), leaves[0]
        source = self._columns[entry.next_path]
        if not isinstance(source, Tensor) or not isinstance(first, Tensor) or first.dtype != source.dtype:
            return False
        before = map(entry.pick, nexts)
        fresh = [0, *compress(range(1, count), map(is_not, islice(leaves, 1, None), before))]
        if 2 * len(fresh) > count:
            return False
        column = self._columns.get(entry.path)
        if column is None:
            column = self._new_column(entry.path, first)
        if column.shape != source.shape:
            return False
        rows = column.narrow(dim, self.steps, count)
        rows.narrow(dim, 1, count - 1).copy_(source.narrow(dim, self.steps, count - 1))
        index = torch.tensor(fresh).to(first.device, non_blocking=True)
        rows.index_copy_(dim, index, torch.stack([leaves[t] for t in fresh], dim))
        return True

    def _reject_change(self, path: tuple[str, ...], leaves: list[Any]) -> None:
        shape, dtype = self.forms[path]
        for at, leaf in enumerate(leaves):
            got = f"{tuple(leaf.shape)} {leaf.dtype}" if isinstance(leaf, Tensor) else type(leaf).__name__
            if got != f"{tuple(shape)} {dtype}":
                raise ShapeError(
                    f"{key_str(path)} became {got} at step {self.steps + at} of this batch, after {tuple(shape)}"
                    f" {dtype}: shapes and dtypes stay as they are"
                )

    def _reject_missing(self, roots: Sequence[Leaves], nexts: Sequence[Leaves]) -> None:
        for entries, rows in ((self._next_entries, nexts), (self._root_entries, roots)):
            for entry in entries:
                for at, row in enumerate(rows):
                    if entry.key not in row:
                        raise ContractError(
                            f"step {self.steps + at} of this batch lacks {key_str(entry.path)}, which the first step of"
                            " this collector had: a policy and an environment must write the same entries at every step"
                        ) from None

    def _reject_new(self, root: Leaves, nxt: Leaves) -> None:
        new = [key for key in _public(root) if key not in self._known_root]
        new += [next_key(key) for key in _public(nxt) if key not in self._known_next]
        if new:
            raise ContractError(
                f"this batch has {', '.join(map(key_str, new))}, which the first step of this collector had not:"
                " a policy and an environment must write the same entries at every step"
            )
        self._known_root.update(root)  # private entries, which are left out
        self._known_next.update(nxt)


_dtype_of = attrgetter("dtype")


def check_keys(prepared: Iterable[NestedKey], found: Iterable[NestedKey], owner: str) -> None:
    """Compare the entries of a batch with those that memory was prepared for.

    Raises:
        ContractError: If one is missing or new.
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


def _public(leaves: Iterable[NestedKey]) -> list[NestedKey]:
    """Return the keys whose last part does not begin with an underscore."""
    return [unwrap(key) for key in leaves if not as_tuple(key)[-1].startswith("_")]
