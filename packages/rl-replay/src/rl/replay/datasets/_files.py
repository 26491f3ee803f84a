"""Files of data sets: where they are, whether they changed, downloads, and folders that appear as a whole."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from rl.core.errors import ArgumentError, MissingExtraError, RLError
from rl.core.settings import settings

T = TypeVar("T", bound=Sized)


def progress_bar(
    title: str, parts: Iterable[T], total: int | None, *, show: bool | None, unit: str = "rows"
) -> Iterator[T]:
    """Parts of something, with a bar of the sum of their lengths.

    Args:
        title: Text of the bar.
        parts: Parts to iterate over.
        total: Sum of all lengths; None if unknown.
        show: Whether a bar is shown; on a terminal, if tqdm is installed, when None.
        unit: Unit of lengths.

    Raises:
        MissingExtraError: If `show` is true and tqdm is not installed.
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


RECORD = "source.json"
"""File of a prepared folder that describes its source."""

Download = bool | Literal["force"]
"""True downloads missing data, ``"force"`` downloads again."""

_BLOCK = 1 << 20


def default_root() -> Path:
    """Where data sets are prepared: ``RL_DATASETS``, else ``~/.cache/rl/datasets``."""
    given = settings().datasets
    return Path(given) if given else Path.home() / ".cache" / "rl" / "datasets"


def folder_of(root: str | Path | None, source: str, dataset_id: str) -> Path:
    """Return the folder of the prepared rows of a data set; that of a local file is named after its path.

    Raises:
        ArgumentError: If the name would leave the folder of data sets.
    """
    base = (Path(root) if root is not None else default_root()) / source
    path = Path(dataset_id).expanduser()
    if path.exists():
        where = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
        return base / f"{path.name}-{where}"
    if not dataset_id or path.is_absolute() or ".." in path.parts:
        raise ArgumentError(f"there is no data set {dataset_id!r}: it is neither an existing path nor a name")
    return base / dataset_id


def fingerprint(files: Iterable[Path], *options: object) -> str:
    """Return a text that changes when one of the files does, or an option."""
    seen = [(str(file), (known := file.stat()).st_size, known.st_mtime_ns) for file in sorted(files)]
    return hashlib.sha256(repr((seen, options)).encode()).hexdigest()


@contextmanager
def made(folder: Path) -> Generator[None]:
    """Create a folder; after an error, folders that were created and are empty are removed."""
    new = [part for part in (folder, *folder.parents) if not part.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for part in new:
                part.rmdir()
        raise


@contextmanager
def source_of(
    owner: str, dataset_id: str, folder: Path, download: Download, get: Callable[[Path], Path]
) -> Generator[Path | None]:
    """Return the file or folder of a data set, or None if its rows were prepared from a download.

    Args:
        owner: Class that messages name.
        dataset_id: Existing path, or a name.
        folder: Folder of the prepared rows.
        download: Argument of `Download`.
        get: Function that downloads into an empty folder and returns the path; its files are removed at the end.

    Raises:
        RLError: If there is neither file nor prepared rows, and nothing may be downloaded.
    """
    path = Path(dataset_id).expanduser()
    if path.exists():
        yield path
    elif download != "force" and (folder / RECORD).is_file():
        yield None
    elif not download:
        raise RLError(
            f"{owner}: {dataset_id!r} is no existing file or folder, and nothing is prepared in {folder}. Pass the path"
            " of the data, or download=True"
        )
    else:
        with made(folder.parent), tempfile.TemporaryDirectory(dir=folder.parent, prefix=".download-") as temporary:
            yield get(Path(temporary))


def fetch(owner: str, url: str, path: Path, *, progress: bool | None = None) -> Path:
    """Download a file.

    Raises:
        RLError: If it cannot be downloaded, or ends early.
    """
    try:
        with urllib.request.urlopen(url) as answer, path.open("wb") as file:  # of this package
            size = int(answer.headers.get("Content-Length") or 0) or None
            blocks = iter(lambda: answer.read(_BLOCK), b"")
            for block in progress_bar(f"{owner} {path.name}", blocks, size, show=progress, unit="B"):
                file.write(block)
            got = file.tell()
    except (OSError, urllib.error.URLError) as error:
        raise RLError(
            f"{owner} cannot download {url}: {error}. Download the file by other means, and pass its path"
        ) from error
    if size is not None and got != size:
        raise RLError(f"{owner}: the download of {url} ended after {got} of {size} bytes; try again")
    return path


@contextmanager
def reading(owner: str, path: object, entry: str, expected: str) -> Generator[None]:
    """Replace whatever a library raises while it reads a damaged or foreign file by one error.

    Args:
        owner: Class that the message names.
        path: File, or name of the data set.
        entry: Part of the file that is read.
        expected: Content of that part in a complete file.

    Raises:
        RLError: If anything but an `RLError` is raised inside.
    """
    try:
        yield
    except RLError:
        raise
    except Exception as error:  # libraries raise OSError, KeyError, RuntimeError, TypeError, ValueError and others
        reason = f"{type(error).__name__}: {error}".rstrip(".")
        raise RLError(
            f"{owner}: {entry} of {path} cannot be read ({reason}): expected {expected}. The file is damaged or of"
            " another layout: write or download it again"
        ) from error


@contextmanager
def open_hdf5(owner: str, h5py: Any, path: Path) -> Generator[Any]:
    """Open an HDF5 file that refers to no other file, whose content it would pass off as its own.

    HDF5 has three such references: external links, external storage, and virtual datasets of other files. Soft links
    stay in the file.

    Raises:
        RLError: If the file cannot be opened, its entries cannot be listed, or there is a reference.
    """
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise RLError(f"{owner} cannot open {path}: {error}. It takes complete HDF5 files") from error
    found: list[str] = []

    def visit(link: bytes, info: Any) -> bool | None:  # does not follow links
        name = link.decode(errors="replace")
        if info.type not in (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT):
            found.append(f"{name} is an external link")
        elif info.type == h5py.h5l.TYPE_HARD and isinstance(entry := file[link], h5py.Dataset):
            if entry.external:
                found.append(f"{name} has external storage")
            elif entry.is_virtual and any(source.file_name != "." for source in entry.virtual_sources()):
                found.append(f"{name} is a virtual dataset")
        return True if found else None  # True ends the visit

    with file:
        with reading(owner, path, "the list of entries", "the groups and arrays of an HDF5 file"):
            file.id.links.visit(visit, info=True)
        if found:
            raise RLError(
                f"{owner}: {found[0]} in {path}, which reads another file. Expected a file with all of its data: copy"
                " the data into it"
            )
        yield file


@contextmanager
def new_folder(folder: Path) -> Generator[Path]:
    """Create a folder that takes its name at the end, in the place of an older one, or is removed after an error."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".partial"))
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())
        old = partial.with_suffix(".old")
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


if sys.platform == "win32":  # pragma: no cover

    @contextmanager
    def locked(folder: Path) -> Generator[None]:
        """Nothing: folders cannot be locked there; prepare a data set in one process."""
        with made(folder):
            yield
else:
    import fcntl

    @contextmanager
    def locked(folder: Path) -> Generator[None]:
        """Wait until no other process prepares data sets in this folder."""
        with made(folder):
            handle: Any = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield
            finally:
                os.close(handle)


def decoded(owner: str, extra: str, name: str, pictures: Sequence[bytes]) -> Tensor:
    """Return encoded images (PNG, JPEG) as uint8 ``[n, channels, height, width]``.

    Raises:
        MissingExtraError: If Pillow is not installed.
        RLError: If one is damaged, or they differ in size.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError(
            f"{owner}: {name} holds images, which need Pillow: pip install 'rl-replay[{extra}]'"
        ) from error
    arrays: list[Any] = []
    for number, picture in enumerate(pictures):
        try:
            with Image.open(io.BytesIO(picture)) as image:
                arrays.append(np.atleast_3d(np.asarray(image)))
        except (OSError, ValueError, SyntaxError) as error:
            raise RLError(f"{owner}: image {number} of {name} cannot be decoded: {error}") from error
    if len({array.shape for array in arrays}) > 1:
        raise RLError(f"{owner}: the images of {name} differ in size: {sorted({a.shape for a in arrays})}")
    return torch.from_numpy(np.stack(arrays)).movedim(-1, 1).contiguous()
