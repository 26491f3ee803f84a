"""Record of an episode from which it can be repeated."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["Record", "is_plain", "pack_rng", "unpack_rng"]


class Record:
    """Record of one episode: how it began, and its actions.

    Args:
        seed: the seed of its reset, or None.
        rng: the state of the simulator's generator before its reset, if there was no seed.
        options: Options of its reset, or None.
    """

    __slots__ = ("actions", "options", "rng", "seed")

    def __init__(
        self, seed: int | None = None, rng: dict[str, Any] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        self.seed, self.rng, self.options = seed, rng, options
        self.actions: list[Any] = []

    def pack(self) -> dict[str, Any]:
        """Return the record as tensors and plain containers."""
        return {
            "seed": self.seed,
            "rng": None if self.rng is None else pack_rng(self.rng),
            "actions": _pack_value(self.actions),
            "options": _pack_value(self.options),
        }

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> Record:
        """Return the record that `pack` wrote."""
        record = cls(packed["seed"], None if packed["rng"] is None else unpack_rng(packed["rng"]))
        record.actions = _unpack_value(packed["actions"])
        record.options = _unpack_value(packed.get("options"))
        return record


def is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, texts, arrays and plain containers, so that `Record.pack` keeps it."""
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | np.ndarray | np.generic)


def pack_rng(state: Any) -> Any:
    """A numpy generator's state without integers of more than 64 bits and without arrays.

    Example:
        >>> pack_rng({"state": 2**100, "has_uint32": 0})
        {'state': {'int': '1267650600228229401496703205376'}, 'has_uint32': 0}
    """
    if isinstance(state, dict):
        return {key: pack_rng(value) for key, value in state.items()}
    if isinstance(state, np.ndarray):
        return {"ints": [str(value) for value in state.tolist()], "dtype": str(state.dtype)}
    if isinstance(state, int) and not isinstance(state, bool) and abs(state) >= 2**63:
        return {"int": str(state)}
    return state


def unpack_rng(packed: Any) -> Any:
    """Return the state that `pack_rng` wrote."""
    if not isinstance(packed, dict):
        return packed
    if set(packed) == {"int"}:
        return int(packed["int"])
    if set(packed) == {"ints", "dtype"}:
        return np.array([int(value) for value in packed["ints"]], dtype=packed["dtype"])
    return {key: unpack_rng(value) for key, value in packed.items()}


def _pack_value(value: Any) -> Any:
    if isinstance(value, list):
        if value and all(isinstance(one, np.ndarray) for one in value):
            return {"stack": torch.from_numpy(np.stack(value))}
        return [_pack_value(one) for one in value]
    if isinstance(value, tuple):
        return {"tuple": [_pack_value(one) for one in value]}
    if isinstance(value, dict):
        return {"dict": {key: _pack_value(one) for key, one in value.items()}}
    if isinstance(value, np.ndarray):
        return {"array": torch.from_numpy(value.copy())}
    return value.item() if isinstance(value, np.generic) else value


def _unpack_value(packed: Any) -> Any:
    if isinstance(packed, list):
        return [_unpack_value(one) for one in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, inner),) = packed.items()
    if kind == "stack":
        return list(inner.cpu().numpy().copy())
    if kind == "tuple":
        return tuple(_unpack_value(one) for one in inner)
    if kind == "array":
        return inner.cpu().numpy().copy()
    return {key: _unpack_value(one) for key, one in inner.items()}
