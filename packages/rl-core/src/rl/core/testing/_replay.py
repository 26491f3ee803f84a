"""Do a storage, a sampler and a writer keep what the protocols of replay promise?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from rl.core.errors import ContractError, RLError
from rl.core.interfaces import Sampler, Storage, Writer

__all__ = ["check_sampler", "check_storage", "check_writer"]

_SIZE = 8


def check_storage(make: Callable[[int], Storage]) -> None:
    """Check a storage of TensorDicts: rows come back as written, nothing is half written, states are exact.

    Args:
        make: a new, empty storage of the capacity that it is given.

    Raises:
        AssertionError: a sentence about the first promise that is broken.

    Example:
        >>> class Ignores:
        ...     def __init__(self, max_size):
        ...         self.max_size = 4
        >>> check_storage(Ignores)
        Traceback (most recent call last):
        ...
        AssertionError: Ignores: max_size is 4, made with 8
    """
    storage = make(_SIZE)
    who = type(storage).__name__
    assert storage.max_size == _SIZE, f"{who}: max_size is {storage.max_size}, made with {_SIZE}"
    assert len(storage) == 0, f"{who}: a new storage has {len(storage)} rows"
    assert storage.count(_rows(0, 3)) == 3, f"{who}.count must return the number of rows"
    assert len(storage) == 0, f"{who}.count must not write"
    fresh = make(_SIZE)
    fresh.load_state_dict(make(_SIZE).state_dict())  # before anything is written there is a state, too
    assert len(fresh) == 0, f"{who}: {len(fresh)} rows after load_state_dict of a new storage's state"
    storage.set(torch.arange(3), _rows(0, 3))
    _holds(storage, [0, 1, 2])
    for gap in (torch.tensor([4, 5]), torch.tensor([2, 4])):
        _refuses(lambda gap=gap: storage.set(gap, _rows(50, 52)), f"{who}.set with a gap before it", IndexError)
    _holds(storage, [0, 1, 2])
    storage.set(slice(3, _SIZE), _rows(3, _SIZE))
    storage.set(torch.tensor([7, 0]), _rows(20, 22))
    expected = [21, 1, 2, 3, 4, 5, 6, 20]
    _holds(storage, expected)
    _storage_copies(storage, expected)
    _storage_refuses(storage, expected)
    state = storage.state_dict()
    _is_plain(state, f"{who}.state_dict()")
    storage.set(torch.tensor([0]), _rows(90, 91))
    other = make(_SIZE)
    other.load_state_dict(state)
    _holds(other, expected)
    storage.empty()
    assert len(storage) == 0, f"{who}.empty() leaves {len(storage)} rows"
    other_rows = _rows(5, 7).exclude("wide")
    _refuses(lambda: storage.set(torch.arange(2), other_rows), f"{who}.set of other rows after empty()")
    storage.set(torch.arange(2), _rows(5, 7))
    _holds(storage, [5, 6])
    _holds(other, expected)


def check_sampler(make: Callable[[], Sampler]) -> None:
    """Check a sampler: its indices are valid, its randomness is the generator's, its state is exact.

    Args:
        make: a new sampler. `Sampler.extended` is called for every row before anything is drawn.

    Raises:
        AssertionError: a sentence about the first promise that is broken.

    Example:
        >>> class Careless:
        ...     def sample(self, storage, batch_size, *, generator=None):
        ...         return torch.zeros(batch_size, dtype=torch.int64), {}
        >>> check_sampler(Careless)
        Traceback (most recent call last):
        ...
        AssertionError: Careless.sample of an empty storage is accepted; it must raise RLError
    """
    storage, empty = _Rows(23), _Rows(0)
    who = type(make()).__name__
    _refuses(lambda: make().sample(empty, 4), f"{who}.sample of an empty storage")
    _refuses(lambda: _informed(make(), storage).sample(storage, 0), f"{who}.sample(batch_size=0)")
    first, second = _informed(make(), storage), _informed(make(), storage)
    one, two = torch.Generator().manual_seed(7), torch.Generator().manual_seed(7)
    before = torch.get_rng_state()
    for _ in range(9):
        index = _draw(first, storage, one)
        assert torch.equal(index, _draw(second, storage, two)), (
            f"{who}: equal generators draw different indices; all randomness must come from `generator`"
        )
    assert torch.equal(before, torch.get_rng_state()), f"{who} uses the global generator beside the given one"
    state, random = first.state_dict(), one.get_state()
    _is_plain(state, f"{who}.state_dict()")
    expected = [_draw(first, storage, one) for _ in range(9)]
    third, three = make(), torch.Generator()
    third.load_state_dict(state)
    three.set_state(random)
    for index in expected:
        assert torch.equal(index, _draw(third, storage, three)), f"{who}: draws differ after load_state_dict"
    _sampler_passes(_informed(make(), storage), storage)
    _reaches_all(_informed(make(), storage), storage)
    _takes_priorities(_informed(make(), storage), storage)
    first.empty()
    fewer = _Rows(7)  # what it knew of the other rows is void
    _informed(first, fewer)
    for _ in range(9):
        _draw(first, fewer, one)


def check_writer(make: Callable[[], Writer]) -> None:
    """Check a writer: it claims different places inside the storage, fills it without a gap, and resumes.

    Args:
        make: a new writer. One that refuses every claim, such as a writer for datasets, must refuse each with
            an `RLError`; nothing else is asked of it.

    Raises:
        AssertionError: a sentence about the first promise that is broken.

    Example:
        >>> from rl.core.errors import ContractError
        >>> class ReadOnly:
        ...     def claim(self, storage, count):
        ...         raise ContractError("this dataset is fixed")
        ...     def state_dict(self):
        ...         return {}
        >>> check_writer(ReadOnly)
    """
    writer, storage = make(), _Rows(0, max_size=_SIZE)
    who = type(writer).__name__
    _is_plain(writer.state_dict(), f"{who}.state_dict()")
    try:
        writer.claim(storage, 1)
    except RLError:
        _refuses(lambda: make().claim(storage, 3), f"{who}.claim of three rows, after it refused one,")
        return
    writer = make()
    for count in (1, 3, 2, 5, 8, 1, 3):
        resumed = make()
        resumed.load_state_dict(writer.state_dict())
        index = _claim(writer, storage, count)
        again = writer.claim(storage, count)
        assert torch.equal(index, again), f"{who}: a claim moves the cursor; only `extended` does"
        assert torch.equal(index, resumed.claim(storage, count)), f"{who}: claims differ after load_state_dict"
        wanted = min(len(storage) + count, _SIZE)
        storage.grow(index, who)
        assert len(storage) == wanted, (
            f"{who}: claims {index.tolist()}, which overwrites rows while places are free: {len(storage)} rows,"
            f" expected {wanted}"
        )
        writer.extended(index, _rows(0, count))
    before = writer.state_dict()
    _refuses(lambda: writer.claim(storage, _SIZE + 1), f"{who}.claim of more rows than the storage has places")
    _refuses(lambda: writer.claim(storage, 0), f"{who}.claim of no rows")
    assert writer.state_dict() == before, f"{who}: a refused claim moved the cursor"
    writer.empty()
    fresh = _Rows(0, max_size=_SIZE)
    fresh.grow(_claim(writer, fresh, 3), who)


class _Rows:
    """A storage that only has a length."""

    def __init__(self, rows: int, max_size: int = 64) -> None:
        self.rows, self.max_size = rows, max_size

    def __len__(self) -> int:
        return self.rows

    def grow(self, index: Tensor, who: str) -> None:
        """Note that `index` was written."""
        new = sorted(int(row) for row in index if row >= self.rows)
        gapless = new == list(range(self.rows, self.rows + len(new)))
        assert gapless, f"{who}: claims {new} while the storage has {self.rows} rows; that leaves a gap"
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


def _rows(start: int, stop: int) -> TensorDict:
    number = torch.arange(start, stop)
    nested = TensorDict({"flag": (number % 2 == 0).unsqueeze(-1)}, batch_size=[len(number)])
    return TensorDict(
        {"number": number, "wide": number.float().unsqueeze(-1).expand(-1, 3), "next": nested},
        batch_size=[len(number)],
    )


def _stacked(rows: Any) -> Any:
    return torch.stack(rows) if isinstance(rows, list) else rows


def _holds(storage: Storage, numbers: list[int]) -> None:
    who = type(storage).__name__
    assert len(storage) == len(numbers), f"{who}: {len(storage)} rows, expected {len(numbers)}"
    order = torch.arange(len(numbers)).flip(0)
    wanted: Any = torch.stack([_rows(number, number + 1)[0] for number in reversed(numbers)])
    for index, what in ((order, "a tensor"), (slice(None), "a slice")):
        got = _stacked(storage.get(index))
        target = wanted if isinstance(index, Tensor) else wanted.flip(0)
        assert got.batch_size == target.batch_size, f"{who}.get of {what}: batch size {list(got.batch_size)}"
        same = bool((got == target).all())
        assert same, f"{who}.get of {what}: rows {got['number'].tolist()}, expected {target['number'].tolist()}"
    sparse = _stacked(storage.get(slice(0, None, 2)))["number"].tolist()
    assert sparse == numbers[::2], f"{who}.get of every other row: rows {sparse}, expected {numbers[::2]}"
    for outside in (len(numbers), -1 - len(numbers)):
        _refuses(lambda outside=outside: storage.get(outside), f"{who}.get({outside})", IndexError)
    last = storage.get(len(numbers) - 1)
    assert last.batch_size == torch.Size([]), f"{who}.get of an int returns one row, without a batch dimension"
    assert int(last["number"]) == numbers[-1], f"{who}.get of an int returns another row"


def _storage_copies(storage: Storage, expected: list[int]) -> None:
    for index in (torch.tensor([1, 2]), slice(0, 3), 1):
        rows = storage.get(index)
        for row in rows if isinstance(rows, list) else [rows]:
            row["number"].fill_(-1)
    written = _rows(expected[0], expected[0] + 1)
    storage.set(torch.tensor([0]), written)
    written["number"].fill_(-1)
    _holds(storage, expected)


def _storage_refuses(storage: Storage, expected: list[int]) -> None:
    who, place, good = type(storage).__name__, torch.tensor([1, 2]), _rows(50, 52)
    bad = {
        "a missing key": good.exclude("wide"),
        "a missing nested key": good.exclude(("next", "flag")),
        "an extra key": good.clone().set("other", torch.zeros(2)),
        "another dtype": good.clone().set("number", good["number"].float()),
        "another shape": good.clone().set("wide", torch.zeros(2, 4)),
        "no rows": good[:0],
    }
    for what, rows in bad.items():
        _refuses(lambda rows=rows: storage.set(place, rows), f"{who}.set of {what}")
    for index in (torch.tensor([1, _SIZE]), torch.tensor([-1, 1])):
        _refuses(lambda index=index: storage.set(index, good), f"{who}.set at {index.tolist()}", IndexError)
        _refuses(lambda index=index: storage.get(index), f"{who}.get at {index.tolist()}", IndexError)
    _refuses(lambda: storage.set(torch.arange(3), good), f"{who}.set of two rows at three indices")
    _holds(storage, expected)


def _informed(sampler: Sampler, storage: _Rows) -> Sampler:
    sampler.extended(torch.arange(len(storage)), _rows(0, len(storage)))
    return sampler


def _draw(sampler: Sampler, storage: _Rows, generator: torch.Generator) -> Tensor:
    who = type(sampler).__name__
    index, info = sampler.sample(storage, 5, generator=generator)
    assert index.dtype is torch.int64, f"{who}: indices are {index.dtype}, expected int64"
    assert index.dim() == 1, f"{who}: indices have shape {list(index.shape)}, expected one dimension"
    full = len(index) == 5 or (sampler.ran_out and 0 < len(index) < 5)
    assert full, f"{who}: {len(index)} indices for batch_size=5 inside a pass"
    inside = bool(((index >= 0) & (index < len(storage))).all())
    assert inside, f"{who}: indices outside of the {len(storage)} rows: {index.tolist()}"
    for key, value in info.items():
        matches = not isinstance(value, Tensor) or len(value) == len(index)
        assert matches, f"{who}: info {key!r} has not one entry for each index"
    return index


def _sampler_passes(sampler: Sampler, storage: _Rows) -> None:
    who, generator = type(sampler).__name__, torch.Generator().manual_seed(3)
    _draw(sampler, storage, generator)
    sampler.restart()
    drawn: list[int] = []
    for _ in range(len(storage)):
        drawn += _draw(sampler, storage, generator).tolist()
        if sampler.ran_out:
            unique = len(set(drawn)) == len(drawn)
            assert unique, f"{who}: a pass draws rows more than once: {sorted(drawn)}"
            assert len(storage) - len(drawn) < 5, f"{who}: a pass leaves out rows; it drew {sorted(drawn)}"
            return


def _reaches_all(sampler: Sampler, storage: _Rows) -> None:
    generator = torch.Generator().manual_seed(5)
    drawn = {row for _ in range(300) for row in _draw(sampler, storage, generator).tolist()}
    never = sorted(set(range(len(storage))) - drawn)
    assert not never, f"{type(sampler).__name__}: rows {never} of {len(storage)} never come in 300 draws of 5"


def _takes_priorities(sampler: Sampler, storage: _Rows) -> None:
    index, what = torch.arange(len(storage)), f"{type(sampler).__name__}.update_priority"
    try:
        sampler.update_priority(index, torch.ones(len(storage)))
    except ContractError:
        return
    except Exception as error:
        raise AssertionError(
            f"{what} raises {type(error).__name__} ({error}); without priorities it raises ContractError"
        ) from error
    _draw(sampler, storage, torch.Generator().manual_seed(5))


def _claim(writer: Writer, storage: _Rows, count: int) -> Tensor:
    who, index = type(writer).__name__, writer.claim(storage, count)
    assert index.dtype is torch.int64, f"{who}: indices are {index.dtype}, expected int64"
    assert index.shape == (count,), f"{who}: {list(index.shape)} indices for {count} rows"
    assert len(set(index.tolist())) == count, f"{who}: claims a place twice: {index.tolist()}"
    inside = bool(((index >= 0) & (index < storage.max_size)).all())
    assert inside, f"{who}: claims {index.tolist()} of a storage of {storage.max_size}"
    return index


def _refuses(call: Callable[[], object], what: str, kind: type[Exception] = RLError) -> None:
    try:
        call()
    except kind:
        return
    except Exception as error:
        raise AssertionError(f"{what} raises {type(error).__name__} ({error}), expected {kind.__name__}") from error
    raise AssertionError(f"{what} is accepted; it must raise {kind.__name__}")


def _is_plain(value: Any, where: str) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            assert isinstance(key, (str, int)), f"{where}: the key {key!r} is neither string nor number"
            _is_plain(item, where)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _is_plain(item, where)
    else:
        plain = value is None or type(value) in (bool, int, float, str) or isinstance(value, Tensor)
        assert plain, f"{where} holds a {type(value).__name__}; states hold tensors and plain containers"
