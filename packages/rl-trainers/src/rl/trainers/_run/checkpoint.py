"""Checkpoints: one safetensors file whose header holds the structure; no pickle, never half written.

A state is nested dicts (string or int keys), lists and tuples of tensors, numbers, strings, booleans and
None. Tensors become the file's tensors; everything else is JSON in the file's metadata, next to the
versions of the packages and a SHA-256 digest of it all.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rl.core.errors import CheckpointError
from rl.trainers._run.files import write_atomic
from rl.trainers._run.versions import package_versions

__all__ = ["FORMAT", "load_checkpoint", "save_checkpoint"]

FORMAT = "rl-checkpoint/1"

#: kinds of nodes in the structure: a node is a plain JSON scalar or ``[kind, content]``
_TENSOR, _DICT, _LIST, _TUPLE, _FLOAT = "tensor", "dict", "list", "tuple", "float"


def save_checkpoint(path: str | Path, state: Mapping[str, Any]) -> None:
    """Write `state` to `path`: all of it, or nothing and the old file stays.

    Args:
        path: where; a file that is there is replaced in one step.
        state: nested dicts, lists and tuples of tensors, numbers, strings, booleans and None.

    Raises:
        CheckpointError: if the state holds something else, the message names the place; or if the disk is full or
            cannot be written.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(Path(folder) / "x.safetensors", {"step": 3, "w": torch.ones(2)})
        ...     load_checkpoint(Path(folder) / "x.safetensors")
        {'step': 3, 'w': tensor([1., 1.])}
    """
    tensors: dict[str, Tensor] = {}
    structure = json.dumps(_pack(dict(state), "state", tensors), separators=(",", ":"))
    metadata = {
        "format": FORMAT,
        "structure": structure,
        "versions": json.dumps(package_versions()),
        "sha256": _digest(structure, tensors),
    }
    try:
        write_atomic(Path(path), lambda temporary: save_file(tensors, temporary, metadata))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} cannot be written: {error}; free some room there, or train into another folder. What was saved"
            " there before is unharmed"
        ) from error


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """The state that `save_checkpoint` wrote, with its tensors on the CPU.

    Raises:
        CheckpointError: if the file is missing, damaged, or was not written by `save_checkpoint`.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}; name a run folder that has been trained")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} is damaged or not a checkpoint ({error}); {_REMEDY.format(folder=path.parent)}"
        ) from error
    _check_format(path, metadata)
    structure = metadata["structure"]
    if _digest(structure, tensors) != metadata["sha256"]:
        raise CheckpointError(
            f"{path} is damaged: its content does not match its digest; {_REMEDY.format(folder=path.parent)}"
        )
    try:
        return dict(_unpack(json.loads(structure), tensors))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is damaged: its structure cannot be read; {_REMEDY.format(folder=path.parent)}"
        ) from error


_REMEDY = "use another checkpoint of {folder}, or train again into a new folder"


def _check_format(path: Path, metadata: Mapping[str, str]) -> None:
    written = metadata.get("format", "")
    if written == FORMAT and {"structure", "sha256"} <= metadata.keys():
        return
    if written.startswith("rl-checkpoint/"):
        raise CheckpointError(
            f"{path} has the format {written!r}, this rl-trainers reads {FORMAT!r}; upgrade rl-trainers"
        )
    raise CheckpointError(
        f"{path} is a safetensors file, but not a checkpoint of rl-trainers; name a file that `rl train` wrote"
    )


def _digest(structure: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(structure.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(memoryview(cast("Any", tensor.reshape(-1).view(torch.uint8).numpy())))
    return digest.hexdigest()


def _pack(node: Any, where: str, tensors: dict[str, Tensor]) -> Any:
    """`node` as JSON; its tensors go to `tensors`, under names that tell where they were."""
    if node is None or isinstance(node, (bool, str)) or type(node) is int:
        return node
    if isinstance(node, float):
        return [_FLOAT, float(node).hex()]
    if isinstance(node, Tensor):
        name = f"{len(tensors)}:{where}"
        tensors[name] = node.detach().cpu().clone(memory_format=torch.contiguous_format)
        return [_TENSOR, name]
    if isinstance(node, Mapping):
        items = cast("Mapping[Any, Any]", node).items()
        return [_DICT, [[_key(key, where), _pack(value, f"{where}.{key}", tensors)] for key, value in items]]
    if isinstance(node, (list, tuple)):
        parts = cast("Sequence[Any]", node)
        kind = _TUPLE if isinstance(node, tuple) else _LIST
        return [kind, [_pack(part, f"{where}[{i}]", tensors) for i, part in enumerate(parts)]]
    raise CheckpointError(
        f"{where} is a {type(node).__name__}; a checkpoint holds tensors, numbers, strings, None, dicts,"
        " lists and tuples: let its state_dict return those"
    )


def _key(key: Any, where: str) -> str | int:
    if type(key) is str or type(key) is int:
        return key
    raise CheckpointError(f"{where} has the key {key!r}; keys of a checkpoint are strings or ints")


def _unpack(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(node, list):
        return node
    kind, content = cast("list[Any]", node)
    if kind == _TENSOR:
        return tensors[content]
    if kind == _FLOAT:
        return math.nan if content == "nan" else float.fromhex(content)
    if kind == _DICT:
        return {key: _unpack(value, tensors) for key, value in content}
    parts = [_unpack(part, tensors) for part in content]
    return tuple(parts) if kind == _TUPLE else parts
