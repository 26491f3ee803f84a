"""Exceptions for the error codes that kernels leave on the device."""

from __future__ import annotations

import struct
from typing import NoReturn

from rl.core.errors import CheckpointError, SpecError

__all__ = ["DAMAGED", "EMPTY", "INDEX", "OVERFLOW", "PRIORITY", "UNIFORM", "raise_recorded"]

INDEX, PRIORITY, EMPTY, OVERFLOW, UNIFORM, DAMAGED = 1, 2, 3, 4, 5, 6


def raise_recorded(code: int, place: int, bits: int, *, capacity: int) -> NoReturn:
    """Raise the error that a kernel recorded.

    Args:
        code: error code of the first rejected call.
        place: position in its batch.
        bits: the rejected value, as the bits of a float64.
        capacity: of the tree.

    Raises:
        IndexError: for an index.
        SpecError: for a priority, a `u`, or a total that nothing can be sampled from.
        CheckpointError: if the buffer is damaged.
    """
    value = struct.unpack("<d", struct.pack("<q", bits))[0]
    where = f" (the one at place {place} of its batch)"
    if code == INDEX:
        raise IndexError(
            f"priority tree: index {value:.0f} is outside of the rows that may be used, of [0, {capacity}) at"
            f" most{where}; that call wrote nothing"
        )
    if code == PRIORITY:
        raise SpecError(
            f"priority tree: {value:g} is refused{where}; a priority is at least 0, and finite in the tree's dtype, one"
            " that an error makes too. That call wrote nothing"
        )
    if code == EMPTY:
        raise SpecError("priority tree: nothing can be sampled, all priorities are zero; update some first")
    if code == OVERFLOW:
        raise SpecError("priority tree: the sum of the priorities is infinite; scale them down")
    if code == UNIFORM:
        raise SpecError(f"priority tree: a u of {value:g} is outside [0, 1){where}")
    raise CheckpointError(f"priority tree: the buffer holds no tree, or was damaged (code {code}, place {place})")
