"""Standard output of a command, kept for its own results."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout, suppress

__all__ = ["diverted_stdout"]


@contextmanager
def diverted_stdout() -> Generator[None]:
    """Send to standard error what is written to standard output meanwhile, also by ``os.write(1, ...)``.

    Plugins are imported and called inside, so that a listing holds nothing else.
    """
    _flush()
    try:
        kept = os.dup(1)
    except OSError:  # there is no standard output
        with redirect_stdout(sys.stderr):
            yield
        return
    try:
        with suppress(OSError):  # there is no standard error
            os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _flush()
        os.dup2(kept, 1)
        os.close(kept)


def _flush() -> None:
    if sys.__stdout__ is not None:
        with suppress(OSError, ValueError):  # closed
            sys.__stdout__.flush()
