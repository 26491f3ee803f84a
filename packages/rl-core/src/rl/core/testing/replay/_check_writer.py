"""`check_writer`: a writer keeps the protocol."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rl.core.errors import RLError
from rl.core.interfaces import Writer
from rl.core.testing._report import Report, require, require_plain
from rl.core.testing.replay._rows import SIZE, RowCount, make_rows, require_refused

__all__ = ["check_writer"]


def check_writer(make: Callable[[], Writer]) -> Report:
    """Check a writer: it claims different places inside the storage, fills it without a gap, and resumes.

    Args:
        make: a new writer. One that refuses every claim, such as a writer for datasets, must refuse each with
            an `RLError`; nothing else is checked.

    Returns:
        What was not exercised.

    Raises:
        CheckError: an `AssertionError` about the first promise that is broken, the reason first.

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
        require_refused(lambda: make().claim(storage, 3), "claim of three rows, after it refused one,", owner)
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
            f"claims {index.tolist()}, which overwrites rows while places are free: {len(storage)} rows,"
            f" expected {wanted}",
            owner,
        )
        writer.extended(index, make_rows(0, count))
    before = writer.state_dict()
    require_refused(lambda: writer.claim(storage, SIZE + 1), "claim of more rows than the storage has places", owner)
    require_refused(lambda: writer.claim(storage, 0), "claim of no rows", owner)
    require(writer.state_dict() == before, "a refused claim moved the cursor", owner)
    writer.empty()
    fresh = RowCount(0, max_size=SIZE)
    fresh.grow(_claim(writer, fresh, 3), owner)
    return Report(owner)


def _claim(writer: Writer, storage: RowCount, count: int) -> Tensor:
    owner, index = type(writer).__name__, writer.claim(storage, count)
    require(index.dtype is torch.int64, f"indices are {index.dtype}, expected int64", owner)
    require(index.shape == (count,), f"{list(index.shape)} indices for {count} rows", owner)
    require(len(set(index.tolist())) == count, f"claims a place twice: {index.tolist()}", owner)
    inside = bool(((index >= 0) & (index < storage.max_size)).all())
    require(inside, f"claims {index.tolist()} of a storage of {storage.max_size}", owner)
    return index
