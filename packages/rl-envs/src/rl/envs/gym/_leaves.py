"""Leaves of a simulator, and how their values become tensors; nothing here imports Gymnasium."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.core.specs import TensorSpec


@dataclass(frozen=True)
class SpaceLeaf:
    """One leaf of the observations or actions of a simulator.

    Args:
        path: Path in the simulator's value, keys of `Dict` and indices of `Tuple`.
        key: Key in a TensorDict.
        spec: Spec of one element.
        encode: Function from the simulator's values of several elements to one array ``[n, *shape]``, freshly made.
        decode: Function from a tensor ``[n, *shape]`` to the simulator's values.
        encode_one: Function `encode` for one value and an array ``[*shape]``, at less cost.
        decode_one: Function `decode` for one value, at less cost.
        made_by: A function and its arguments, with which a pickled one is rebuilt.
        decode_rows: Function `decode` into one array ``[n, ...]``, at less cost; None for that of the list.
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


def as_exact_array(values: Any, dtype: Any) -> Any:
    """Return a fresh array of `dtype`.

    Raises:
        SpecError: If `values` are no numbers, or integers of `dtype` do not hold them.
    """
    array = np.array(values)
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "biuf":
        raise SpecError(f"expected {dtype}, got {array.dtype}: {values!r:.60}")
    with np.errstate(invalid="ignore", over="ignore"):
        out = array.astype(dtype)
    if dtype.kind in "biu" and not np.array_equal(out, array):
        wrong = array[out != array].flat[0]
        raise SpecError(f"expected {dtype}, got {array.dtype} with {wrong}, which it cannot hold")
    return out


def indices(values: Any, start: Any, counts: Any) -> Any:
    """Return the numbers of choices from 0 on, int64.

    Raises:
        SpecError: If a value is no choice.
    """
    chosen = as_exact_array(values, np.dtype(np.int64)) - start
    wrong = (chosen < 0) | (chosen >= counts)
    if wrong.any():
        value = (chosen + start)[wrong].flat[0]
        raise SpecError(f"expected integers from {start} to {start + counts - 1}, got {value}")
    return chosen


def part_of(value: Any, path: tuple[Any, ...], paths: Sequence[tuple[Any, ...]], owner: str) -> Any:
    """Return the leaf at `path` of an observation.

    Args:
        value: Observation of the simulator.
        path: Path of the leaf.
        paths: Paths of all leaves of the space, for the message.
        owner: Name of the environment, for the message.

    Raises:
        SpecError: If the observation has no such entry.
    """
    for depth, name in enumerate(path):
        try:
            value = value[name]
        except (KeyError, IndexError, TypeError) as error:
            lacking = path[: depth + 1] if depth else name
            wanted = list(dict.fromkeys(other[depth] for other in paths if other[:depth] == path[:depth]))
            raise SpecError(
                f"the observation of {owner} lacks {lacking!r}, {_contents(value)}; its space has {wanted}."
                " Return every entry of the space, or take it out of the space"
            ) from error
    return value


def _contents(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"it has {list(value)}"
    if isinstance(value, tuple | list):
        return f"it has {len(value)} value{'s' * (len(value) != 1)}"
    return f"it is of type {type(value).__name__}"


def nest(paths: Sequence[tuple[Any, ...]], values: Sequence[Any]) -> Any:
    """Return the simulator's value from those of its leaves.

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
