"""Plain aligned tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["table"]


def table(rows: Sequence[Sequence[str]], *, head: bool = False) -> Iterator[str]:
    """The rows as lines, with columns aligned.

    Args:
        rows: of one length.
        head: underline the first row.

    Example:
        >>> print(*table([("kind", "name"), ("env", "gym")], head=True), sep="|")
        kind  name|----  ----|env   gym
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        if head and number == 0:
            yield "  ".join("-" * width for width in (*widths[:-1], len(row[-1])))  # the last column may be sentences
