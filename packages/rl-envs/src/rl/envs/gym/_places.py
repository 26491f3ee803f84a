"""Leaves of a simulator's observations and actions, and how their values become tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from rl.core.keys import NestedKey
from rl.core.specs import TensorSpec

__all__ = ["Place", "nest"]


@dataclass(frozen=True)
class Place:
    """One leaf of the observations or actions of a simulator.

    Args:
        path: where it lies in the simulator's value, keys of `Dict` and indices of `Tuple`.
        key: where it lies in a TensorDict.
        spec: of one element.
        encode: from the simulator's values of several elements to one array ``[n, *shape]``, freshly made.
        decode: from a tensor ``[n, *shape]`` to the simulator's values.
        encode_one: `encode` for one value and an array ``[*shape]``, at less cost.
        decode_one: `decode` for one value, at less cost.
        made_by: a function and its arguments, with which a pickled one is rebuilt.
        decode_rows: `decode` into one array ``[n, ...]``, at less cost; None for that of the list.
    """

    path: tuple[Any, ...]
    key: NestedKey
    spec: TensorSpec
    encode: Callable[[Sequence[Any]], Any]
    decode: Callable[[Tensor], list[Any]]
    encode_one: Callable[[Any], Any]
    decode_one: Callable[[Tensor], Any]
    made_by: tuple[Any, ...]
    decode_rows: Callable[[Tensor], Any] | None = None

    def decode_array(self, tensor: Tensor) -> Any:
        """One array of the simulator's values."""
        return np.array(self.decode(tensor)) if self.decode_rows is None else self.decode_rows(tensor)

    def __reduce__(self) -> tuple[Any, ...]:
        make, *arguments = self.made_by
        return make, tuple(arguments)


def nest(paths: Sequence[tuple[Any, ...]], values: Sequence[Any]) -> Any:
    """The simulator's value from those of its leaves.

    Example:
        >>> nest([("a",), ("b", 0), ("b", 1)], [1, 2, 3])
        {'a': 1, 'b': (2, 3)}
    """
    if len(paths) == 1 and not paths[0]:
        return values[0]
    groups: dict[Any, tuple[list[Any], list[Any]]] = {}
    for path, value in zip(paths, values, strict=True):
        inner = groups.setdefault(path[0], ([], []))
        inner[0].append(path[1:])
        inner[1].append(value)
    built = {head: nest(inner, parts) for head, (inner, parts) in groups.items()}
    return tuple(built.values()) if all(isinstance(head, int) for head in built) else built
