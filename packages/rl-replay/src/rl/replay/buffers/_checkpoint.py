"""A state on disk: a JSON manifest and one file of raw tensors. No pickle.

A writer holds the lock of the folder, writes a data file with a new name, replaces the manifest in one step, and
removes the other data files. A reader takes no lock: if the data file that its manifest names was removed meanwhile, it
reads the new manifest. The operating system releases the lock of a process that ends, and the next writer removes what
that process left.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from rl.core.errors import CheckpointError
from rl.replay._state import reading

__all__ = ["read_state", "write_state"]

_MANIFEST = "manifest.json"
_LOCK = ".lock"
_OURS = re.compile(r"tensors-[0-9a-f]{12}\.bin|manifest\.json\.[0-9a-f]{12}")  # data files, unfinished manifests
_FORMAT = 1
_ALIGN = 64  # any dtype can be viewed at such an offset
_CHUNK = 1 << 26


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Write `state` into `folder`; a checkpoint that is there stays valid until the new one is complete.

    Raises:
        CheckpointError: if `state` holds something else than tensors and plain containers, or `folder` is a file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     write_state(Path(name), {"steps": 3, "rows": torch.arange(4)})
        ...     read_state(Path(name))
        {'steps': 3, 'rows': tensor([0, 1, 2, 3])}
    """
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; a checkpoint is a folder: choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        _write(folder, state)


def read_state(folder: Path) -> dict[str, Any]:
    """The state in `folder`; tensors are mapped from the file, so that rows are read once.

    Raises:
        CheckpointError: if there is no checkpoint, it is damaged, or a later version wrote it.
    """
    manifest = _read_manifest(folder)
    while True:
        try:
            return _read(folder, manifest)
        except CheckpointError:
            # A writer may have replaced this checkpoint, and removed its data, while it was read.
            before, manifest = manifest, _read_manifest(folder)
            if manifest == before:
                raise


def _write(folder: Path, state: Mapping[str, Any]) -> None:
    data = folder / f"tensors-{secrets.token_hex(6)}.bin"
    manifest = folder / f"{_MANIFEST}.{secrets.token_hex(6)}"
    try:
        with data.open("xb") as file:
            writer = _Writer(file)
            encoded = writer.encode(state)
            _flush(file)
        content = {
            "format": _FORMAT,
            "data": data.name,
            "bytes": writer.offset,
            "crc32": writer.crc,
            "state_crc32": _checksum_of(encoded),
            "state": encoded,
        }
        with manifest.open("x", encoding="utf-8") as text:
            json.dump(content, text)
            _flush(text)
        manifest.replace(folder / _MANIFEST)
    except BaseException:
        data.unlink(missing_ok=True)
        manifest.unlink(missing_ok=True)
        raise
    for old in folder.iterdir():
        if old != data and _OURS.fullmatch(old.name):
            old.unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Be the only writer in `folder`, among the threads and processes that write checkpoints.

    Raises:
        CheckpointError: if the file system has no locks.
    """
    with (folder / _LOCK).open("ab") as file:
        try:
            _lock(file.fileno(), on=True)
        except OSError as error:
            raise CheckpointError(
                f"{folder} cannot be locked against other writers ({error}); write the checkpoint to a file system with"
                " locks"
            ) from error
        try:
            yield
        finally:
            _lock(file.fileno(), on=False)  # not left to `close`: a process that was forked meanwhile has the file too


if sys.platform == "win32":  # pragma: no cover
    import msvcrt

    def _lock(file: int, *, on: bool) -> None:
        os.lseek(file, 0, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_LOCK if on else msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _lock(file: int, *, on: bool) -> None:
        fcntl.flock(file, fcntl.LOCK_EX if on else fcntl.LOCK_UN)


def _read_manifest(folder: Path) -> bytes:
    try:
        return (folder / _MANIFEST).read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{folder} holds no checkpoint: {_MANIFEST} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{folder / _MANIFEST} cannot be read: {error}") from error


def _read(folder: Path, manifest: bytes) -> dict[str, Any]:
    path = folder / _MANIFEST
    try:
        content = json.loads(manifest)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        found = content.get("format") if isinstance(content, dict) else None
        raise CheckpointError(f"{path} has format {found!r}, expected {_FORMAT}: upgrade rl-replay, or it is damaged")
    missing = next((name for name in ("data", "bytes", "crc32", "state_crc32", "state") if name not in content), None)
    if missing is not None:
        raise CheckpointError(f"{path} is damaged: it has no {missing!r}")
    if _checksum_of(content["state"]) != content["state_crc32"]:
        raise CheckpointError(f"{path} is damaged: its checksum differs")
    data, size = folder / str(content["data"]), content["bytes"]
    try:
        if not data.is_file() or data.stat().st_size != size:
            raise CheckpointError(f"{data} is missing or damaged: expected {size} bytes")
        if _checksum(data) != content["crc32"]:
            raise CheckpointError(f"{data} is damaged: its checksum differs from the manifest")
        if size:
            raw = torch.from_file(str(data), shared=False, size=size, dtype=torch.uint8)
        else:
            raw = torch.empty(0, dtype=torch.uint8, device="cpu")
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{data} cannot be read: {error}") from error
    with reading(str(path)):
        return _decode(content["state"], raw)


class _Writer:
    """Turns a state into JSON, tensors going to a file."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.offset, self.crc = file, 0, 0

    def encode(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, Tensor):
            return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape), self._put(value)]}
        if isinstance(value, Mapping):
            return {"dict": [[self.encode(key), self.encode(item)] for key, item in value.items()]}
        if isinstance(value, (list, tuple)):
            return {"list" if isinstance(value, list) else "tuple": [self.encode(item) for item in value]}
        raise CheckpointError(f"a checkpoint holds tensors and plain containers, got a {type(value).__name__}")

    def _put(self, value: Tensor) -> int:
        if value.layout is not torch.strided or value.is_meta or value.is_quantized:
            kind = "meta" if value.is_meta else str(value.layout).removeprefix("torch.")
            raise CheckpointError(
                f"a checkpoint holds dense tensors, got a {kind} tensor of {value.dtype} {list(value.shape)}; convert"
                " it with `.to_dense()` or `.dequantize()` before it is stored"
            )
        self._write(bytes(-self.offset % _ALIGN))
        start = self.offset
        flat = value.detach().cpu().reshape(-1)
        if flat.stride(0) != 1:  # of one element: torch takes any stride of it as contiguous
            flat = torch.empty_like(flat, memory_format=torch.contiguous_format).copy_(flat)
        for part in flat.view(torch.uint8).split(_CHUNK):
            array: Any = part.numpy()
            self._write(memoryview(array))
        return start

    def _write(self, part: bytes | memoryview) -> None:
        self.file.write(part)
        self.crc = zlib.crc32(part, self.crc)
        self.offset += len(part)


def _decode(value: Any, raw: Tensor) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        name, shape, start = content
        dtype = getattr(torch, name)
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"{name!r} is no dtype")
        size = torch.Size(shape).numel() * dtype.itemsize
        if size == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        return raw[start : start + size].view(dtype).reshape(shape)
    items = [_decode(item, raw) for item in content] if kind != "dict" else []
    if kind == "list":
        return items
    if kind == "tuple":
        return tuple(items)
    if kind == "dict":
        return {_decode(key, raw): _decode(item, raw) for key, item in content}
    raise ValueError(f"unknown kind {kind!r}")


def _checksum_of(encoded: Any) -> int:
    return zlib.crc32(json.dumps(encoded).encode())


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _checksum(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while part := file.read(_CHUNK):
            crc = zlib.crc32(part, crc)
    return crc
