"""Standard output of a command, kept for its own results."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from difflib import get_close_matches
from typing import NoReturn


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
        with suppress(OSError, ValueError):  # the stream is closed already
            sys.__stdout__.flush()


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that names the nearest option instead of only rejecting; exit status 2."""

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse all arguments, or leave with a sentence."""
        options, unknown = self.parse_known_args(arguments)
        if unknown:
            known = [name for action in self._actions for name in action.option_strings]
            close = get_close_matches(unknown[0].partition("=")[0], known, n=1)
            hint = f"; did you mean {close[0]}?" if close else "."
            self.error(f"there is no option {unknown[0]}{hint} All of them: {self.prog} --help")
        return options

    def error(self, message: str) -> NoReturn:
        """Leave with exit status 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def table(rows: Sequence[Sequence[str]], *, head: bool = False) -> Iterator[str]:
    """Return the rows as lines, with columns aligned.

    Args:
        rows: Rows of one length.
        head: Whether to underline the first row.

    Example:
        >>> print(*table([("kind", "name"), ("env", "gym")], head=True), sep="|")
        kind  name|----  ----|env   gym
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        if head and number == 0:
            yield "  ".join("-" * width for width in (*widths[:-1], len(row[-1])))  # the last may hold sentences
