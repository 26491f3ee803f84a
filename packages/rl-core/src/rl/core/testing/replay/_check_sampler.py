"""`check_sampler`: a sampler keeps the protocol."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rl.core.errors import CheckError, ContractError
from rl.core.interfaces import Sampler
from rl.core.testing._report import Report, require, require_plain
from rl.core.testing.replay._rows import RowCount, make_rows, require_refused

__all__ = ["check_sampler"]


def check_sampler(make: Callable[[], Sampler]) -> Report:
    """Check a sampler: its indices are valid, its randomness is the generator's, its state is exact.

    Args:
        make: a new sampler. `Sampler.extended` is called for every row before the first sample.

    Returns:
        What was not exercised.

    Raises:
        CheckError: an `AssertionError` about the first promise that is broken, the reason first.

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
    require_refused(lambda: make().sample(empty, 4), "sample of an empty storage", owner)
    require_refused(lambda: _informed(make(), storage).sample(storage, 0), "sample(batch_size=0)", owner)
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
    _takes_priorities(first, storage)  # so that the state holds more than what a new sampler has
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
    fewer = RowCount(7)  # what it knew of the other rows is void
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
