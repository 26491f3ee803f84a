"""`check_storage`: a storage keeps the protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rl.core.interfaces import Storage
from rl.core.testing._report import Report, require, require_plain
from rl.core.testing.replay._rows import SIZE, make_rows, require_refused

__all__ = ["check_storage"]


def check_storage(make: Callable[[int], Storage]) -> Report:
    """Check a storage of TensorDicts: rows come back as written, nothing is half written, states are exact.

    Args:
        make: a new, empty storage of the capacity that it is given.

    Returns:
        What was not exercised.

    Raises:
        CheckError: an `AssertionError` about the first promise that is broken, the reason first.

    Example:
        >>> class Ignores:
        ...     def __init__(self, max_size):
        ...         self.max_size = 4
        >>> check_storage(Ignores)
        Traceback (most recent call last):
        ...
        rl.core.errors.CheckError: max_size is 4, made with 8 (Ignores)
    """
    storage = make(SIZE)
    owner = type(storage).__name__
    require(storage.max_size == SIZE, f"max_size is {storage.max_size}, made with {SIZE}", owner)
    require(len(storage) == 0, f"a new storage has {len(storage)} rows", owner)
    require(storage.count(make_rows(0, 3)) == 3, "count must return the number of rows", owner)
    require(len(storage) == 0, "count must not write", owner)
    fresh = make(SIZE)
    fresh.load_state_dict(make(SIZE).state_dict())  # before anything is written there is a state, too
    require(len(fresh) == 0, f"{len(fresh)} rows after load_state_dict of a new storage's state", owner)
    storage.set(torch.arange(3), make_rows(0, 3))
    _holds(storage, [0, 1, 2])
    for gap in (torch.tensor([4, 5]), torch.tensor([2, 4])):
        require_refused(
            lambda gap=gap: storage.set(gap, make_rows(50, 52)), "set with a gap before it", owner, IndexError
        )
    _holds(storage, [0, 1, 2])
    storage.set(slice(3, SIZE), make_rows(3, SIZE))
    storage.set(torch.tensor([7, 0]), make_rows(20, 22))
    expected = [21, 1, 2, 3, 4, 5, 6, 20]
    _holds(storage, expected)
    _storage_copies(storage, expected)
    _storage_refuses(storage, expected)
    state = storage.state_dict()
    require_plain(state, "state_dict()", owner)
    storage.set(torch.tensor([0]), make_rows(90, 91))
    other = make(SIZE)
    other.load_state_dict(state)
    _holds(other, expected)
    storage.empty()
    require(len(storage) == 0, f"empty() leaves {len(storage)} rows", owner)
    other_rows = make_rows(5, 7).exclude("wide")
    require_refused(lambda: storage.set(torch.arange(2), other_rows), "set of other rows after empty()", owner)
    storage.set(torch.arange(2), make_rows(5, 7))
    _holds(storage, [5, 6])
    _holds(other, expected)
    return Report(owner)


def _stacked(rows: Any) -> Any:
    return torch.stack(rows) if isinstance(rows, list) else rows


def _holds(storage: Storage, numbers: list[int]) -> None:
    owner = type(storage).__name__
    require(len(storage) == len(numbers), f"{len(storage)} rows, expected {len(numbers)}", owner)
    order = torch.arange(len(numbers)).flip(0)
    wanted: Any = torch.stack([make_rows(number, number + 1)[0] for number in reversed(numbers)])
    for index, what in ((order, "a tensor"), (slice(None), "a slice")):
        got = _stacked(storage.get(index))
        target = wanted if isinstance(index, Tensor) else wanted.flip(0)
        require(got.batch_size == target.batch_size, f"get of {what}: batch size {list(got.batch_size)}", owner)
        same = bool((got == target).all())
        require(same, f"get of {what}: rows {got['number'].tolist()}, expected {target['number'].tolist()}", owner)
    sparse = _stacked(storage.get(slice(0, None, 2)))["number"].tolist()
    require(sparse == numbers[::2], f"get of every other row: rows {sparse}, expected {numbers[::2]}", owner)
    for outside in (len(numbers), -1 - len(numbers)):
        require_refused(lambda outside=outside: storage.get(outside), f"get({outside})", owner, IndexError)
    last = storage.get(len(numbers) - 1)
    require(last.batch_size == torch.Size([]), "get of an int returns one row, without a batch dimension", owner)
    require(int(last["number"]) == numbers[-1], "get of an int returns another row", owner)


def _storage_copies(storage: Storage, expected: list[int]) -> None:
    for index in (torch.tensor([1, 2]), slice(0, 3), 1):
        rows = storage.get(index)
        for row in rows if isinstance(rows, list) else [rows]:
            row["number"].fill_(-1)
    written = make_rows(expected[0], expected[0] + 1)
    storage.set(torch.tensor([0]), written)
    written["number"].fill_(-1)
    _holds(storage, expected)


def _storage_refuses(storage: Storage, expected: list[int]) -> None:
    owner, place, good = type(storage).__name__, torch.tensor([1, 2]), make_rows(50, 52)
    bad = {
        "a missing key": good.exclude("wide"),
        "a missing nested key": good.exclude(("next", "flag")),
        "an extra key": good.clone().set("other", torch.zeros(2)),
        "another dtype": good.clone().set("number", good["number"].float()),
        "another shape": good.clone().set("wide", torch.zeros(2, 4)),
        "no rows": good[:0],
    }
    for what, rows in bad.items():
        require_refused(lambda rows=rows: storage.set(place, rows), f"set of {what}", owner)
    for index in (torch.tensor([1, SIZE]), torch.tensor([-1, 1])):
        require_refused(lambda index=index: storage.set(index, good), f"set at {index.tolist()}", owner, IndexError)
        require_refused(lambda index=index: storage.get(index), f"get at {index.tolist()}", owner, IndexError)
    require_refused(lambda: storage.set(torch.arange(3), good), "set of two rows at three indices", owner)
    _holds(storage, expected)
