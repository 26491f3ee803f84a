"""Atomic writing of files, and the check of a place for a video."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl.core.errors import MissingExtraError, RLError

__all__ = ["atomic_path", "check_video", "remove_temporary", "video_library", "write_atomic"]


@contextmanager
def atomic_path(path: Path) -> Generator[Path]:
    """A temporary path next to `path` that replaces it when the block ends without an error.

    What was at `path` before stays as it is until then, and for good if the block raises.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _sync(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporary(path: Path) -> None:
    """Delete the temporary files that a killed process left next to `path`."""
    for left in path.parent.glob(f".{path.stem}-*{path.suffix}"):
        left.unlink(missing_ok=True)


def write_atomic(path: Path, write: Callable[[Path], object] | str) -> None:
    """Fill `path` with a text, or with what ``write(temporary_path)`` writes, in one step.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_atomic(Path(folder) / "a.txt", "hello")
        ...     (Path(folder) / "a.txt").read_text()
        'hello'
    """
    with atomic_path(Path(path)) as temporary:
        if isinstance(write, str):
            temporary.write_text(write, encoding="utf-8")
        else:
            write(temporary)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def video_library() -> Any:
    """The library that writes videos.

    Raises:
        MissingExtraError: if it is not installed.
    """
    try:
        import imageio.v3 as imageio
        import imageio_ffmpeg  # noqa: F401  # pyright: ignore[reportUnusedImport]  # imageio needs it for mp4
    except ImportError as error:
        raise MissingExtraError(
            f"videos need {error.name}, which is not installed: pip install 'rl-trainers[video]'"
        ) from error
    return imageio


def check_video(out: str | Path) -> Any:
    """The library that writes videos, if one can be written to `out`.

    Raises:
        MissingExtraError: if it is not installed.
        RLError: if there is a file at `out`, no file can be made there, or its name has no known ending.
    """
    path = Path(out)
    if path.exists():
        raise RLError(f"{path} exists already and is not overwritten; name another file with --video")
    if path.suffix not in (".mp4", ".gif"):
        raise RLError(f"--video writes .mp4 or .gif, got {path.name!r}; name a file like out.mp4")
    imageio = video_library()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise RLError(f"{path} cannot be written: {error.strerror}; name another file with --video") from error
    return imageio
