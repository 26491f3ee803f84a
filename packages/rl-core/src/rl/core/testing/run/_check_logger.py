"""Conformance of a `rl.core.interfaces.Logger`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rl.core.errors import CheckError
from rl.core.interfaces import Logger
from rl.core.testing._report import Report, require

__all__ = ["check_logger"]

_ROWS: tuple[tuple[int, dict[str, float]], ...] = (
    (10, {"loss": 0.5, "reward": -2.0}),
    (20, {"loss": 0.25, "reward": 3}),
    (30, {"loss": 1e-12}),
    (40, {"loss": math.nan, "reward": math.inf}),
    (40, {"reward": 7.0}),
    (50, {"loss": 123456.789, "reward": 0.1}),
)


def check_logger(
    make: Callable[[], Logger], *, read: Callable[[], Mapping[str, Mapping[int, float]]] | None = None
) -> Report:
    """Check a logger: it takes every row, leaves the values alone, and can be closed twice.

    Rows are floats and integers, NaN and infinity, lack a name that an earlier one had, and repeat a step.

    Args:
        make: a new logger.
        read: what was recorded, after `close`, as value by step by name. Values that are not finite, and those of a
            step that was logged twice, are not compared.

    Returns:
        What was not exercised.

    Raises:
        CheckError: an `AssertionError` with the reason first.

    Example:
        >>> class Memory:
        ...     def __init__(self):
        ...         rows.clear()
        ...     def log_scalars(self, values, step):
        ...         for name, value in values.items():
        ...             rows.setdefault(name, {})[step] = value
        ...     def close(self): ...
        >>> rows = {}
        >>> check_logger(Memory, read=lambda: rows)
        Report(owner='Memory', not_exercised=[])
    """
    unused = make()
    owner = type(unused).__name__
    report = Report(owner)
    missing = [name for name in ("log_scalars", "close") if not callable(getattr(unused, name, None))]
    require(not missing, f"no rl.core.interfaces.Logger: lacks {missing}", owner)
    _call("close before anything was logged", unused.close, owner)
    logger = make()
    for step, row in _ROWS:
        values = dict(row)
        _call(f"log_scalars({row}, step={step})", lambda v=values, s=step: logger.log_scalars(v, s), owner)
        same = {k: repr(v) for k, v in values.items()} == {k: repr(v) for k, v in row.items()}
        require(same, "log_scalars changed the values that it was given", owner)
    _call("close", logger.close, owner)
    _call("close, called a second time,", logger.close, owner)
    if read is None:
        report.skip("what was recorded: give `read=`")
    else:
        _check_recorded(read(), owner)
    return report.warn()


def _check_recorded(found: Mapping[str, Mapping[int, float]], owner: str) -> None:
    for step, row in _ROWS:
        for name, value in row.items():
            if step == 40 or not math.isfinite(value):
                continue
            got = found.get(name, {}).get(step)
            same = got is not None and math.isclose(got, value, rel_tol=1e-6)
            require(same, f"{name!r} of step {step} was recorded as {got}, it was {value}", owner)


def _call(what: str, function: Callable[[], Any], owner: str) -> None:
    try:
        function()
    except Exception as error:
        raise CheckError(f"{what} raised {type(error).__name__}: {error} ({owner})") from error
