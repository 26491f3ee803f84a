"""States of components as plain data, and as files: no pickle, never half written, checked when they are read.

A state is nested dicts, lists and tuples of tensors, numbers, strings, booleans and None. `pack` turns TensorDicts and
numpy arrays into these; `save` writes a state as one safetensors file with the structure and a checksum as metadata.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
import sys
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, is_non_tensor
from torch import Tensor

from rl.core.errors import CheckpointError, RLError

__all__ = ["load", "pack", "reading", "save", "set_generator", "unpack"]

_FORMAT = "rl-state/1"
_FORMATS = (_FORMAT, "rl-checkpoint/1")  # the second has the same structure and no CRC-32
_TAG = "__state__"
_CHUNK = 1 << 26
_ALIGNMENT = 16
_NO_CRC = "00000000"
_BROKEN = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError, RLError)

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@contextmanager
def reading(owner: str) -> Generator[None]:
    """Turn the errors of reading a damaged state into a `CheckpointError`.

    Example:
        >>> with reading("Writer"):
        ...     int("three")
        Traceback (most recent call last):
        ...
        rl.core.errors.CheckpointError: Writer: the state is damaged (ValueError: invalid literal for int() ...
    """
    try:
        yield
    except CheckpointError:
        raise
    except _BROKEN as error:
        raise CheckpointError(
            f"{owner}: the state is damaged ({type(error).__name__}: {error}). Load another checkpoint; nothing was"
            " changed"
        ) from error


def pack(value: Any, owner: str) -> Any:  # noqa: PLR0911  one for each kind
    """`value` as plain data, copied: TensorDicts and numpy arrays are taken apart.

    Args:
        value: Plain data, TensorDicts, numpy arrays and numbers, nested in any way.
        owner: Component whose state it is, for messages.

    Raises:
        CheckpointError: If `value` holds something else.

    Example:
        >>> td = TensorDict({"a": torch.ones(2)}, batch_size=[2])
        >>> unpack(pack(td, "a batch"), "a batch")["a"]
        tensor([1., 1.])
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, Tensor) and not value.is_meta:
        return value.detach().clone()
    if isinstance(value, (list, tuple)):
        items = [pack(item, owner) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if is_non_tensor(value):
        return {_TAG: "non-tensor", "data": pack(value.tolist(), owner), "dims": value.ndim}
    if isinstance(value, TensorDictBase):
        names = list(value.names) if any(value.names) else None
        return {
            _TAG: "tensordict",
            "entries": [[name, pack(entry, owner)] for name, entry in value.items()],
            "batch_size": list(value.batch_size),
            "names": names,
            "device": None if value.device is None else str(value.device),
        }
    if isinstance(value, Mapping):
        if _TAG in value or not all(type(key) is str or type(key) is int for key in value):
            return {_TAG: "dict", "items": [[pack(key, owner), pack(item, owner)] for key, item in value.items()]}
        return {key: pack(item, owner) for key, item in value.items()}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return {_TAG: "array", "data": torch.from_numpy(value.copy())}
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        return value.item()
    raise CheckpointError(
        f"{owner} holds {_shown(value)}; a state holds tensors, numbers, strings, None, and lists, tuples and dicts of"
        " these. Convert it before it is stored"
    )


def unpack(value: Any, owner: str, device: torch.device | None = None) -> Any:
    """Restore a copy of the value that `pack` was given.

    Args:
        value: Result of `pack`, perhaps from a file, whose tensors are on the CPU.
        owner: Name of the component whose state it is, for messages.
        device: Device of the component, where its tensors go. If None, a TensorDict with a device goes to that one
            again, or to the CPU on a machine without it; other tensors stay where they are.

    Raises:
        CheckpointError: If `value` is not what `pack` returned.

    Example:
        >>> packed = pack(TensorDict({"a": torch.ones(2)}, device="cpu"), "a batch")
        >>> unpack(packed, "a batch", torch.device("meta")).device
        device(type='meta')
    """
    with reading(owner):
        return _unpack(value, owner, device)


def _unpack(value: Any, owner: str, to: torch.device | None) -> Any:  # noqa: PLR0911  one for each kind
    if isinstance(value, (list, tuple)):
        items = [_unpack(item, owner, to) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, Tensor) and not value.is_meta:
        return value.detach().to(device=to, copy=True)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if not isinstance(value, dict):
        raise CheckpointError(f"{owner}: the state is damaged: it holds {_shown(value)}. Nothing was changed")
    tag = value.get(_TAG)
    if tag is None:
        return {key: _unpack(item, owner, to) for key, item in value.items()}
    if tag == "dict":
        return {_unpack(key, owner, None): _unpack(item, owner, to) for key, item in value["items"]}
    if tag == "array":
        return _unpack(value["data"], owner, torch.device("cpu")).numpy()
    if tag == "non-tensor":
        return _non_tensor(_unpack(value["data"], owner, to), value["dims"])
    if tag == "tensordict":
        entries = {name: _unpack(entry, owner, to) for name, entry in value["entries"]}
        device = None if value["device"] is None else to or _reachable(torch.device(value["device"]))
        return TensorDict(entries, batch_size=value["batch_size"], names=value["names"], device=device)
    raise ValueError(f"unknown kind {tag!r}")


def _reachable(device: torch.device) -> torch.device:
    """`device`, or the CPU on a machine without it: a state that was saved with a GPU loads without one, too."""
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError):  # AssertionError: torch was built without the device
        return torch.device("cpu")
    return device


def set_generator(generator: torch.Generator, state: Tensor, owner: str) -> None:
    """Continue a generator from what its ``get_state()`` returned.

    Torch takes that only from the CPU, wherever the generator and the other tensors of a state are.

    Args:
        generator: Generator that is continued; it stays as it is after an error.
        state: Result of its ``get_state()``, on any device.
        owner: Name of the component that it belongs to, for messages.

    Raises:
        CheckpointError: If it is that of a generator on another kind of device, whose numbers are others.

    Example:
        >>> one, other = torch.Generator().manual_seed(3), torch.Generator()
        >>> set_generator(other, one.get_state(), "Sampler")
        >>> other.initial_seed()
        3
    """
    own = generator.get_state()
    if state.shape != own.shape:
        raise CheckpointError(
            f"{owner}: its generator is on {generator.device}, and the state is of a generator on another kind of"
            f" device ({state.numel()} bytes instead of {own.numel()}): continue on the device where it was saved"
        )
    with reading(f"{owner}: the generator on {generator.device}"):
        generator.set_state(state.cpu().clone())  # a copy, because torch ignores the storage offset of the tensor


def _non_tensor(value: Any, dims: int) -> Any:
    if dims == 0:
        return NonTensorData(value)
    return NonTensorStack(*[_non_tensor(item, dims - 1) for item in value])


def save(path: str | Path, state: Mapping[str, Any]) -> None:
    """Write a state to a file: all of it, or nothing and the old file stays.

    Writers in other threads and processes do not disturb each other, and the last one stays. A file that an interrupted
    writer left is removed by the next one.

    Args:
        path: File, which is replaced in one step; its folder is created.
        state: Plain data.

    Raises:
        CheckpointError: If the state holds something other than plain data, or the file cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(f"{folder}/x.safetensors", {"steps": 3, "rows": torch.arange(4)})
        ...     load(f"{folder}/x.safetensors")
        {'steps': 3, 'rows': tensor([0, 1, 2, 3])}
    """
    path = Path(path)
    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_encode(state, "state", tensors), separators=(",", ":"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _replacing(path) as file:
            _write(file, structure, tensors)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error}; free some room there, or name another file. What was saved there"
            " before is unharmed"
        ) from error


def load(path: str | Path, *, mapped: bool = True) -> dict[str, Any]:
    """Read the state that `save` wrote.

    Args:
        path: File.
        mapped: Tensors are private maps of the file, read when they are used first; the file must then not be
            overwritten in place (`save` replaces it). Otherwise they are copies.

    Raises:
        CheckpointError: If the file is missing, damaged, or was not written by `save`.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}; name a file that was saved")
    with reading(str(path)):
        try:
            # One handle for the checks, the map and the size: another writer may replace the file meanwhile.
            with path.open("rb") as file:
                return _read(path, file, mapped=mapped)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error


def _write(file: IO[bytes], structure: str, tensors: Mapping[str, Tensor]) -> None:
    # The widest elements first, then the largest tensors: offsets are aligned without gaps, most maps need no copy.
    order = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, -item[1].numel()))
    entries: dict[str, Any] = {"__metadata__": {"format": _FORMAT, "crc32": _NO_CRC, "structure": structure}}
    offset = 0
    for name, tensor in order:
        end = offset + tensor.numel() * tensor.itemsize
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-(8 + len(header)) % 64)
    file.write(struct.pack("<Q", len(header)) + header)
    crc = zlib.crc32(structure.encode())
    for _, tensor in order:
        flat = tensor.detach().cpu().reshape(-1)
        if flat.stride(0) != 1:  # of one element: torch takes any stride of it as contiguous
            flat = torch.empty_like(flat, memory_format=torch.contiguous_format).copy_(flat)
        for part in flat.view(torch.uint8).split(_CHUNK):
            array: Any = part.numpy()
            file.write(memoryview(array))
            crc = zlib.crc32(array, crc)
    file.seek(8 + header.index(_NO_CRC.encode()))
    file.write(f"{crc:08x}".encode())


def _read(path: Path, file: IO[bytes], *, mapped: bool) -> dict[str, Any]:
    size = os.fstat(file.fileno()).st_size
    (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
    if not 0 < length <= size - 8:
        raise CheckpointError(f"{path} is damaged or not a checkpoint: it has no header")
    header = json.loads(file.read(length))
    metadata = header.pop("__metadata__", {})
    written = metadata.get("format")
    if written not in _FORMATS:
        raise CheckpointError(
            f"{path} has the format {written!r}, this rl-core reads {_FORMAT!r}: upgrade rl-core, or name a checkpoint"
        )
    start = 8 + length
    expected = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size - start != expected:
        raise CheckpointError(f"{path} is damaged: expected {start + expected} bytes, got {size}")
    structure = metadata["structure"]
    if "crc32" in metadata or written == _FORMAT:
        crc = zlib.crc32(structure.encode())
        while part := file.read(_CHUNK):
            crc = zlib.crc32(part, crc)
        if metadata["crc32"] != f"{crc:08x}":
            raise CheckpointError(f"{path} is damaged: its checksum differs")
    raw = _map(path, file, size) if mapped and expected else _copy(file)
    tensors = {name: _tensor(raw, start, entry) for name, entry in header.items()}
    return dict(_decode(json.loads(structure), tensors))


def _map(path: Path, file: IO[bytes], size: int) -> Tensor:
    name = f"/proc/self/fd/{file.fileno()}" if sys.platform == "linux" else str(path)
    return torch.from_file(name, shared=False, size=size, dtype=torch.uint8)


def _copy(file: IO[bytes]) -> Tensor:
    file.seek(0)
    return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)


def _tensor(raw: Tensor, start: int, entry: Mapping[str, Any]) -> Tensor:
    dtype, (low, high) = _DTYPES[entry["dtype"]], entry["data_offsets"]
    if low == high:
        return torch.empty(entry["shape"], dtype=dtype, device="cpu")
    part = raw[start + low : start + high]
    state_of_generator = (
        dtype is torch.uint8 and len(entry["shape"]) == 1
    )  # torch reads it from offset 0 of its storage
    if state_of_generator or part.data_ptr() % _ALIGNMENT:
        part = part.clone()
    return part.view(dtype).reshape(entry["shape"])


def _encode(node: Any, where: str, tensors: dict[str, Tensor]) -> Any:
    """`node` as JSON: a scalar or ``[kind, content]``; its tensors go to `tensors`, under names that say where."""
    if node is None or isinstance(node, (bool, str)) or type(node) is int:
        return node
    if isinstance(node, float):
        return ["float", float(node).hex()]
    if isinstance(node, Tensor):
        _check_dense(node, where)
        name = f"{len(tensors)}:{where}"
        if node.dtype in _NAMES:
            tensors[name] = node
            return ["tensor", name]
        tensors[name] = node.detach().resolve_conj().resolve_neg().reshape(-1).contiguous().view(torch.uint8)
        return ["bits", [name, str(node.dtype).removeprefix("torch."), list(node.shape)]]
    if isinstance(node, Mapping):
        items = cast("Mapping[Any, Any]", node).items()
        return [
            "dict",
            [[_encode(key, where, tensors), _encode(item, f"{where}.{key}", tensors)] for key, item in items],
        ]
    if isinstance(node, (list, tuple)):
        parts = [_encode(part, f"{where}[{i}]", tensors) for i, part in enumerate(cast("list[Any]", node))]
        return ["list" if isinstance(node, list) else "tuple", parts]
    raise CheckpointError(
        f"{where} is {_shown(node)}; a checkpoint holds tensors, numbers, strings, None, dicts, lists and tuples:"
        " `rl.core.state.pack` converts TensorDicts and arrays"
    )


def _check_dense(value: Tensor, where: str) -> None:
    if value.layout is not torch.strided or value.is_meta or value.is_quantized:
        raise CheckpointError(
            f"a checkpoint holds dense tensors, {where} is {_shown(value)}; convert it with `.to_dense()` or"
            " `.dequantize()` before it is stored"
        )


def _decode(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(node, list):
        return node
    kind, content = cast("list[Any]", node)
    if kind == "tensor":
        return tensors[content]
    if kind == "float":
        return float(content) if content in ("nan", "inf", "-inf") else float.fromhex(content)
    if kind == "bits":
        name, dtype, shape = content
        return tensors[name].clone().view(getattr(torch, dtype)).reshape(shape)
    if kind == "dict":
        return {_decode(key, tensors): _decode(item, tensors) for key, item in content}
    if kind not in ("list", "tuple"):
        raise ValueError(f"unknown kind {kind!r}")
    parts = [_decode(part, tensors) for part in content]
    return tuple(parts) if kind == "tuple" else parts


@contextmanager
def _replacing(path: Path) -> Generator[IO[bytes]]:
    """Open a new file next to `path` that takes its name at the end, or is removed after an error."""
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        with suppress(OSError), left.open("rb") as other:  # another writer holds the lock, or Windows its handle
            if _lock(other):
                left.unlink()
    temporary, file = _temporary(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _temporary(path: Path) -> tuple[Path, IO[bytes]]:
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
        file = temporary.open("xb")
        if _lock(file) and temporary.exists():  # else another writer has removed it as a leftover
            return temporary, file
        file.close()
        temporary.unlink(missing_ok=True)


if sys.platform == "win32":  # pragma: no cover

    def _lock(file: IO[bytes]) -> bool:
        del file  # an open file cannot be removed there
        return True
else:
    import fcntl

    def _lock(file: IO[bytes]) -> bool:
        """Whether nothing else holds the lock of a file; this process then holds it until it closes the file."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        kind = "meta" if value.is_meta else str(value.layout).removeprefix("torch.")
        return f"a {kind} tensor of {value.dtype} {list(value.shape)}"
    plain = isinstance(value, (bool, int, float, str, list, tuple, type(None)))
    return text if plain and len(text := repr(value)) <= 60 else f"a {type(value).__name__}"
