"""Progress bars of tqdm, which is optional."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from rl.core.errors import MissingExtraError

__all__ = ["progress_bar"]

T = TypeVar("T", bound=Sized)


def progress_bar(
    title: str, parts: Iterable[T], total: int | None, *, show: bool | None, unit: str = "rows"
) -> Iterator[T]:
    """Parts of something, with a bar of the sum of their lengths.

    Args:
        title: text of the bar.
        parts: parts to iterate over.
        total: sum of all lengths; None if unknown.
        show: whether a bar is shown; on a terminal, if tqdm is installed, when None.
        unit: of lengths.

    Raises:
        MissingExtraError: if `show` is true and tqdm is not installed.
    """
    if show is False or (show is None and not sys.stderr.isatty()):
        return iter(parts)
    try:
        from tqdm import tqdm
    except ImportError as error:
        if show is None:
            return iter(parts)
        raise MissingExtraError(
            "progress=True needs tqdm, which is not installed: pip install 'rl-replay[progress]'"
        ) from error
    return _shown(tqdm(desc=title, total=total, unit=unit, unit_scale=True), parts)


def _shown(bar: object, parts: Iterable[T]) -> Iterator[T]:
    with bar as shown:  # type: ignore[attr-defined]
        for part in parts:
            yield part
            shown.update(len(part))
