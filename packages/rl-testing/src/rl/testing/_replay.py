"""Conformance of the parts of a replay buffer: storage, sampler, writer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from rl.core.errors import CheckError, ContractError, RLError
from rl.core.interfaces import Sampler, Storage, Writer
from rl.testing._report import Report, fail, require, require_plain

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


def require_rejected(call: Callable[[], object], what: str, owner: str, kind: type[Exception] = RLError) -> None:
    """Raise a `CheckError` unless the call raises `kind`."""
    try:
        call()
    except kind:
        return
    except Exception as error:
        reason = f"{what} raises {type(error).__name__} ({error}), expected {kind.__name__}"
        raise CheckError(f"{reason} ({owner})") from error
    fail(f"{what} is accepted; it must raise {kind.__name__}", owner)


def check_storage(make: Callable[[int], Storage]) -> Report:
    """Check a storage of TensorDicts: rows come back as written, nothing is half written, states are exact.

    Args:
        make: Function of a capacity that returns a new, empty storage.

    Returns:
        What was not exercised.

    Raises:
        CheckError: An `AssertionError` about the first promise that is broken, the reason first.

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
    require(storage.max_size == SIZE, f"max_size is {storage.max_size}, created with {SIZE}", owner)
    require(len(storage) == 0, f"a new storage has {len(storage)} rows", owner)
    require(storage.count(make_rows(0, 3)) == 3, "count must return the number of rows", owner)
    require(len(storage) == 0, "count must not write", owner)
    fresh = make(SIZE)
    fresh.load_state_dict(make(SIZE).state_dict())  # the state of an empty storage loads, too
    require(len(fresh) == 0, f"{len(fresh)} rows after load_state_dict of a new storage's state", owner)
    storage.set(torch.arange(3), make_rows(0, 3))
    _holds(storage, [0, 1, 2])
    for gap in (torch.tensor([4, 5]), torch.tensor([2, 4])):
        require_rejected(
            lambda gap=gap: storage.set(gap, make_rows(50, 52)), "set with a gap before it", owner, IndexError
        )
    _holds(storage, [0, 1, 2])
    storage.set(slice(3, SIZE), make_rows(3, SIZE))
    storage.set(torch.tensor([7, 0]), make_rows(20, 22))
    expected = [21, 1, 2, 3, 4, 5, 6, 20]
    _holds(storage, expected)
    _storage_copies(storage, expected)
    _storage_rejects(storage, expected)
    state = storage.state_dict()
    require_plain(state, "state_dict()", owner)
    storage.set(torch.tensor([0]), make_rows(90, 91))
    other = make(SIZE)
    other.load_state_dict(state)
    _holds(other, expected)
    storage.empty()
    require(len(storage) == 0, f"empty() leaves {len(storage)} rows", owner)
    other_rows = make_rows(5, 7).exclude("wide")
    require_rejected(lambda: storage.set(torch.arange(2), other_rows), "set of other rows after empty()", owner)
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
        require_rejected(lambda outside=outside: storage.get(outside), f"get({outside})", owner, IndexError)
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


def _storage_rejects(storage: Storage, expected: list[int]) -> None:
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
        require_rejected(lambda rows=rows: storage.set(place, rows), f"set of {what}", owner)
    for index in (torch.tensor([1, SIZE]), torch.tensor([-1, 1])):
        require_rejected(lambda index=index: storage.set(index, good), f"set at {index.tolist()}", owner, IndexError)
        require_rejected(lambda index=index: storage.get(index), f"get at {index.tolist()}", owner, IndexError)
    require_rejected(lambda: storage.set(torch.arange(3), good), "set of two rows at three indices", owner)
    _holds(storage, expected)


def check_sampler(make: Callable[[], Sampler]) -> Report:
    """Check a sampler: its indices are valid, its randomness is the generator's, its state is exact.

    Args:
        make: Function that returns a new sampler. `Sampler.extended` is called for every row before the first sample.

    Returns:
        What was not exercised.

    Raises:
        CheckError: An `AssertionError` about the first promise that is broken, the reason first.

    Example:
        >>> class Careless:
        ...     def sample(self, storage, batch_size, *, generator=None):
        ...         return torch.zeros(batch_size, dtype=torch.int64), {}
        >>> check_sampler(Careless)
        Traceback (most recent call last):
        ...
        rl.core.errors.CheckError: sample of an empty storage is accepted; it must raise RLError (Careless)
    """
    storage, empty = RowCount(23), RowCount(0)
    owner = type(make()).__name__
    require_rejected(lambda: make().sample(empty, 4), "sample of an empty storage", owner)
    require_rejected(lambda: _informed(make(), storage).sample(storage, 0), "sample(batch_size=0)", owner)
    _keeps_what_it_returned(_informed(make(), storage), storage)
    first, second = _informed(make(), storage), _informed(make(), storage)
    one, two = torch.Generator().manual_seed(7), torch.Generator().manual_seed(7)
    before = torch.get_rng_state()
    for _ in range(9):
        index = _draw(first, storage, one)
        require(
            torch.equal(index, _draw(second, storage, two)),
            "equal generators sample different indices; all randomness must come from `generator`",
            owner,
        )
    require(torch.equal(before, torch.get_rng_state()), "uses the global generator in addition to the given one", owner)
    _takes_priorities(first, storage)  # so that the state differs from that of a new sampler
    state, random = first.state_dict(), one.get_state()
    require_plain(state, "state_dict()", owner)
    expected = [_draw(first, storage, one) for _ in range(9)]
    third, three = make(), torch.Generator()
    third.load_state_dict(state)
    three.set_state(random)
    for index in expected:
        require(
            torch.equal(index, _draw(third, storage, three)),
            "the state_dict is incomplete: samples differ after load_state_dict",
            owner,
        )
    _sampler_passes(_informed(make(), storage), storage)
    _reaches_all(_informed(make(), storage), storage)
    first.empty()
    fewer = RowCount(7)  # the sampler must drop what it knew of the other rows
    _informed(first, fewer)
    for _ in range(9):
        _draw(first, fewer, one)
    return Report(owner)


def _informed(sampler: Sampler, storage: RowCount) -> Sampler:
    sampler.extended(torch.arange(len(storage)), make_rows(0, len(storage)))
    return sampler


def _draw(sampler: Sampler, storage: RowCount, generator: torch.Generator) -> Tensor:
    owner = type(sampler).__name__
    index, info = sampler.sample(storage, 5, generator=generator)
    require(index.dtype is torch.int64, f"indices are {index.dtype}, expected int64", owner)
    require(index.dim() == 1, f"indices have shape {list(index.shape)}, expected one dimension", owner)
    full = len(index) == 5 or (sampler.ran_out and 0 < len(index) < 5)
    require(full, f"{len(index)} indices for batch_size=5 inside a pass", owner)
    inside = bool(((index >= 0) & (index < len(storage))).all())
    require(inside, f"indices outside of the {len(storage)} rows: {index.tolist()}", owner)
    for key, value in info.items():
        matches = not isinstance(value, Tensor) or len(value) == len(index)
        require(matches, f"info {key!r} has not one entry for each index", owner)
        number = isinstance(value, Tensor) and value.is_floating_point()
        require(not number or bool(value.isfinite().all()), f"info {key!r} is not finite: {value}", owner)
    return index


def _keeps_what_it_returned(sampler: Sampler, storage: RowCount) -> None:
    generator = torch.Generator().manual_seed(11)
    first = _draw(sampler, storage, generator)
    before = first.clone()
    for _ in range(3):
        _draw(sampler, storage, generator)
    same = torch.equal(first, before)
    require(
        same, "reuses its buffer: indices that it returned were overwritten by a later sample", type(sampler).__name__
    )


def _sampler_passes(sampler: Sampler, storage: RowCount) -> None:
    owner, generator = type(sampler).__name__, torch.Generator().manual_seed(3)
    _draw(sampler, storage, generator)
    sampler.restart()
    drawn: list[int] = []
    for _ in range(len(storage)):
        drawn += _draw(sampler, storage, generator).tolist()
        if sampler.ran_out:
            unique = len(set(drawn)) == len(drawn)
            require(unique, f"a pass samples rows more than once: {sorted(drawn)}", owner)
            require(len(storage) - len(drawn) < 5, f"a pass leaves out rows; it drew {sorted(drawn)}", owner)
            return


def _reaches_all(sampler: Sampler, storage: RowCount) -> None:
    generator = torch.Generator().manual_seed(5)
    drawn = {row for _ in range(300) for row in _draw(sampler, storage, generator).tolist()}
    never = sorted(set(range(len(storage))) - drawn)
    require(not never, f"rows {never} of {len(storage)} are never sampled in 300 batches of 5", type(sampler).__name__)


def _takes_priorities(sampler: Sampler, storage: RowCount) -> bool:
    """Whether the sampler has priorities; they are no longer equal then."""
    index, owner = torch.arange(len(storage)), type(sampler).__name__
    try:
        sampler.update_priority(index, 1.0 + index.float() ** 2)
    except ContractError:
        return False
    except Exception as error:
        reason = f"update_priority raises {type(error).__name__} ({error}); without priorities it raises ContractError"
        raise CheckError(f"{reason} ({owner})") from error
    _draw(sampler, storage, torch.Generator().manual_seed(5))
    return True


def check_writer(make: Callable[[], Writer]) -> Report:
    """Check a writer: it claims different slots inside the storage, fills it without a gap, and resumes.

    Args:
        make: Function that returns a new writer. One that rejects every claim, as a writer of datasets, raises
            an `RLError`; nothing else is checked.

    Returns:
        What was not exercised.

    Raises:
        CheckError: An `AssertionError` about the first promise that is broken, the reason first.

    Example:
        >>> from rl.core.errors import ContractError
        >>> class ReadOnly:
        ...     def claim(self, storage, count):
        ...         raise ContractError("this dataset is fixed")
        ...     def state_dict(self):
        ...         return {}
        >>> check_writer(ReadOnly)
        Report(owner='ReadOnly', not_exercised=[])
    """
    writer, storage = make(), RowCount(0, max_size=SIZE)
    owner = type(writer).__name__
    require_plain(writer.state_dict(), "state_dict()", owner)
    try:
        writer.claim(storage, 1)
    except RLError:
        require_rejected(lambda: make().claim(storage, 3), "claim of three rows, after it rejected one,", owner)
        return Report(owner)
    writer = make()
    for count in (1, 3, 2, 5, 8, 1, 3):
        resumed = make()
        resumed.load_state_dict(writer.state_dict())
        index = _claim(writer, storage, count)
        again = writer.claim(storage, count)
        require(torch.equal(index, again), "a claim moves the cursor; only `extended` does", owner)
        require(torch.equal(index, resumed.claim(storage, count)), "claims differ after load_state_dict", owner)
        wanted = min(len(storage) + count, SIZE)
        storage.grow(index, owner)
        require(
            len(storage) == wanted,
            f"claims {index.tolist()}, which overwrites rows while slots are free: {len(storage)} rows,"
            f" expected {wanted}",
            owner,
        )
        writer.extended(index, make_rows(0, count))
    before = writer.state_dict()
    require_rejected(lambda: writer.claim(storage, SIZE + 1), "claim of more rows than the storage has slots", owner)
    require_rejected(lambda: writer.claim(storage, 0), "claim of no rows", owner)
    require(writer.state_dict() == before, "a rejected claim moved the cursor", owner)
    writer.empty()
    fresh = RowCount(0, max_size=SIZE)
    fresh.grow(_claim(writer, fresh, 3), owner)
    return Report(owner)


def _claim(writer: Writer, storage: RowCount, count: int) -> Tensor:
    owner, index = type(writer).__name__, writer.claim(storage, count)
    require(index.dtype is torch.int64, f"indices are {index.dtype}, expected int64", owner)
    require(index.shape == (count,), f"{list(index.shape)} indices for {count} rows", owner)
    require(len(set(index.tolist())) == count, f"claims a slot twice: {index.tolist()}", owner)
    inside = bool(((index >= 0) & (index < storage.max_size)).all())
    require(inside, f"claims {index.tolist()} of a storage of {storage.max_size}", owner)
    return index
