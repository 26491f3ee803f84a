"""States of the parts of a buffer: validation, twins that continue from them, and the lock of shared buffers."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn, Self

import torch
from torch import Tensor

from rl.core.errors import BackendError, CheckpointError
from rl.core.keys import NestedKey
from rl.core.state import reading
from rl.replay._layout import Cells, Column, key_of


class Fields:
    """The fields of a state, checked one by one.

    Args:
        owner: Class of the state, which messages name.
        state: Result of its `state_dict`.
        names: Fields that it must have; it may have no others.

    Raises:
        CheckpointError: If a field is missing or unknown.

    Example:
        >>> Fields("Writer", {"cursor": 3}, ("cursor",)).integer("cursor", high=10)
        3
    """

    def __init__(self, owner: str, state: Any, names: Sequence[str]) -> None:
        self.owner: Final = owner
        if not isinstance(state, Mapping):
            raise CheckpointError(f"{owner}: a state is what state_dict() returns, got {type(state).__name__}")
        self._state: Final[Mapping[Any, Any]] = state
        missing = [name for name in names if name not in self._state]
        if missing:
            raise CheckpointError(f"{owner}: this state lacks {', '.join(missing)}; it is not the state of a {owner}")
        unknown = [str(name) for name in self._state if name not in names]
        if unknown:
            raise CheckpointError(
                f"{owner}: this state has {', '.join(unknown)}, which this version of {owner} does not have. It"
                " was saved by another version of rl-replay, or with other arguments: load it with those"
            )

    def __getitem__(self, name: str) -> Any:
        return self._state[name]

    def fail(self, text: str) -> NoReturn:
        """Reject the state.

        Raises:
            CheckpointError: Always.
        """
        raise CheckpointError(f"{self.owner}: the state is damaged: {text}. Nothing was changed")

    def match(self, **own: Any) -> None:
        """Reject the state of an object with other arguments.

        Raises:
            CheckpointError: Naming the argument and both values.
        """
        for name, value in own.items():
            found = self._state[name]
            if type(found) is not type(value) or found != value:
                raise CheckpointError(
                    f"{self.owner} has {name}={value}, the state {name}={found}: construct it with the same arguments"
                )

    def integer(self, name: str, *, low: int = 0, high: int | None = None) -> int:
        """Return an integer of at least `low` and at most `high`."""
        value = self._state[name]
        if type(value) is not int or value < low or (high is not None and value > high):
            limits = f"at least {low}" if high is None else f"in [{low}, {high}]"
            self.fail(f"{name} must be an integer {limits}, got {_shown(value)}")
        return value

    def flag(self, name: str) -> bool:
        """Return a field that is a bool."""
        value = self._state[name]
        if type(value) is not bool:
            self.fail(f"{name} must be a bool, got {_shown(value)}")
        return value

    def items(self, name: str) -> list[Any]:
        """Return a field that is a list."""
        value = self._state[name]
        if not isinstance(value, list):
            self.fail(f"{name} must be a list, got {_shown(value)}")
        return value

    def integers(self, name: str, *, low: int, high: int) -> list[int]:
        """Return a list of integers in ``[low, high]``."""
        values = self.items(name)
        if any(type(value) is not int or not low <= value <= high for value in values):
            self.fail(f"{name} must be integers in [{low}, {high}], got {_shown(values)}")
        return values

    def tensor(self, name: str, dtype: torch.dtype | None, dims: int) -> Tensor:
        """Return a tensor of `dtype`, or of any if None, with `dims` dimensions; on the CPU, wherever the state is."""
        value = self._state[name]
        if not isinstance(value, Tensor) or dtype not in (None, value.dtype) or value.dim() != dims or value.is_meta:
            self.fail(
                f"{name} must be a tensor of {dtype or 'any dtype'} with {dims} dimension(s), got {_shown(value)}"
            )
        return value.detach().cpu()

    def indices(self, name: str, *, low: int = 0, high: int) -> Tensor:
        """Return indices in ``[low, high)``, int64 ``[n]``."""
        value = self.tensor(name, torch.int64, 1)
        if value.numel() and not (low <= int(value.min()) and int(value.max()) < high):
            self.fail(f"{name} must be in [{low}, {high}), got values from {int(value.min())} to {int(value.max())}")
        return value


class Stateful:
    """Base of the parts of a buffer, whose states load into a twin: a damaged one changes nothing.

    A subclass defines `state_dict` and `_load`. One whose objects are shared with others, such as the memory of a
    storage, also extends `adopt`.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` continues from, as tensors and plain containers; empty without a state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Args:
            state: Result of `state_dict`.

        Raises:
            CheckpointError: If `state` is damaged, or of an object with other arguments. Nothing is changed then.
        """
        self.adopt(self.twin(state))

    def twin(self, state: Any, rows: int | None = None, max_size: int | None = None) -> Self:
        """Create a shallow copy that continues from `state`; this object is not changed.

        Args:
            state: Result of `state_dict`.
            rows: Number of rows that the storage of the buffer will have; None if unknown.
            max_size: Capacity of that storage; None if unknown.

        Raises:
            CheckpointError: See `load_state_dict`.
        """
        twin = object.__new__(type(self))
        vars(twin).update(vars(self))
        with reading(getattr(self, "_owner", type(self).__name__)):  # the buffer, of a part that it constructs
            twin._load(state, rows, max_size)
        return twin

    def adopt(self, twin: Any) -> None:
        """Continue as `twin`; after that only this object is used."""
        vars(self).update(vars(twin))

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:  # noqa: ARG002  subclasses use them
        """Set the attributes of a twin from `state`.

        Attributes are replaced and their values not modified, because the twin shares them with its original.
        """
        Fields(type(self).__name__, state, ())


@dataclass(frozen=True)
class _Unread:
    """State of a part without twins, which may still reject it."""

    state: Any


def twin_of(part: Any, state: Any, rows: int | None = None, max_size: int | None = None) -> Any:
    """Create the twin of a part; one that loads its states in its own way gets `state` in `adopt_all`."""
    if isinstance(part, Stateful) and type(part).load_state_dict is Stateful.load_state_dict:
        return part.twin(state, rows, max_size)
    return _Unread(state)


def adopt_all(owner: str, pairs: Sequence[tuple[Any, Any]]) -> None:
    """Let parts continue as their twins: all of them, or none.

    Args:
        owner: Class that messages name.
        pairs: Parts and their twins. A part whose `adopt` may fail, for lack of memory, comes before the others.

    Raises:
        CheckpointError: If a part without twins rejects its state.
    """
    pairs = [pair for part, twin in pairs for pair in _pairs(part, twin)]
    unread = [(part, twin.state) for part, twin in pairs if isinstance(twin, _Unread)]
    before = [(part, part.state_dict()) for part, _ in unread]
    try:
        with reading(owner):
            for part, state in unread:
                part.load_state_dict(state)
        for part, twin in pairs:
            if not isinstance(twin, _Unread):
                part.adopt(twin)
    except BaseException:
        for part, old in before:
            part.load_state_dict(old)
        raise


def _pairs(part: Any, twin: Any) -> list[tuple[Any, Any]]:
    """Return a part and its twin; of a group those of all members."""
    if not isinstance(twin, StatefulGroup):
        return [(part, twin)]
    pairs = zip(part.members, twin.members, strict=True)
    return [pair for one, other in pairs for pair in _pairs(one, other)]


class StatefulGroup(Stateful):
    """Base of a part that consists of others, in the attribute `_members_as`; its state is the list of theirs."""

    _members_as: ClassVar[str]

    @property
    def members(self) -> Sequence[Any]:
        """The parts, which continue as those of a twin."""
        return getattr(self, self._members_as)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the members."""
        return {self._members_as: [one.state_dict() for one in self.members]}

    def adopt(self, twin: Any) -> None:
        """Let each member continue as its twin."""
        adopt_all(type(self).__name__, [(self, twin)])

    def _load(self, state: Any, rows: int | None, max_size: int | None) -> None:  # noqa: ARG002  of all members
        name, owner = self._members_as, type(self).__name__
        fields = Fields(owner, state, (name,))
        states = fields.items(name)
        if len(states) != len(self.members):
            fields.fail(f"it has {len(states)} {name}, this {owner} has {len(self.members)}")
        vars(self)[name] = [twin_of(one, part) for one, part in zip(self.members, states, strict=True)]


def load_cells(
    fields: Fields, columns: Mapping[NestedKey, Column], cells: Any, rows: int, *, meta: bool = False
) -> Cells:
    """Return the columns ``[rows, ...]``, read from pairs of key and column; they may be `meta`.

    Raises:
        CheckpointError: If a column is missing or unknown, or has another number of rows, shape or dtype.
    """
    found: Cells = {key_of(key): part for key, part in cells}
    if found.keys() != columns.keys() or len(found) != len(cells):
        fields.fail(f"it has columns {list(found)}, its layout {list(columns)}")
    for key, column in columns.items():
        part = found[key]
        if column.dtype is None:
            fits = _is_nested(part, (rows, *column.shape))
        else:
            fits = (
                isinstance(part, Tensor)
                and part.dtype is column.dtype
                and part.shape == (rows, *column.shape)
                and (meta or not part.is_meta)
                and part.layout is torch.strided
            )
        if not fits:
            fields.fail(f"column {key!r} must be {column} in each of {rows} rows, got {_shown(part)}")
    return found


def _is_nested(value: Any, shape: Sequence[int]) -> bool:
    """Return whether `value` is lists of such lengths, one in the other."""
    if not shape:
        return True
    return isinstance(value, list) and len(value) == shape[0] and all(_is_nested(item, shape[1:]) for item in value)


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        kind = "meta" if value.is_meta else str(value.layout).removeprefix("torch.")
        return f"a {kind} tensor of {value.dtype} {list(value.shape)}"
    plain = isinstance(value, (bool, int, float, str, list, tuple, type(None)))
    return text if plain and len(text := repr(value)) <= 60 else f"a {type(value).__name__}"


class SharedLock:
    """Reentrant lock between threads and processes, on a file, which is released if a process ends.

    Args:
        path: File; it is created.
        pull: Method that is called when the lock was acquired, to read what other processes changed.
        push: Method that is called before the lock is released.
        forked: Method that is called in a forked process before the first use of the lock.

    Raises:
        BackendError: on a system without locks of files.
    """

    def __init__(
        self, path: Path, pull: Callable[[], None], push: Callable[[], None], forked: Callable[[], None]
    ) -> None:
        if sys.platform == "win32":  # pragma: no cover
            raise BackendError("shared=True needs locks of files, which this system does not have")
        self._path: Final = path
        # The buffer has the lock: without weak references, its files would stay until cycles are collected.
        self._pull, self._push, self._forked = map(weakref.WeakMethod, (pull, push, forked))
        self._open()

    def _open(self) -> None:
        # Each process opens the file itself: a lock belongs to an open file, which forked processes would share.
        self._file: Any = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        self._process, self._depth, self._threads = os.getpid(), 0, threading.RLock()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            os.close(self._file)
            self._open()
            _call(self._forked)
        self._threads.acquire()
        if self._depth == 0:
            try:
                _lock(self._file)
                try:
                    _call(self._pull)
                except BaseException:
                    _unlock(self._file)
                    raise
            except BaseException:
                self._threads.release()
                raise
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        try:
            if self._depth == 0:
                try:
                    _call(self._push)
                finally:
                    _unlock(self._file)
        finally:
            self._threads.release()

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            os.close(self._file)


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    found = method()
    if found is not None:
        found()


if sys.platform != "win32":
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)

    def _unlock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
