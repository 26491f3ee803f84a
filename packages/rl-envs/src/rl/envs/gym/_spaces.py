"""Gymnasium's spaces: their specs, and the conversion of values to tensors and back.

A space becomes one or several leaves (`SpaceLeaf`): one for each leaf of a tree of `Dict` and `Tuple`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, key_str, unwrap
from rl.core.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    TensorSpec,
    Unbounded,
)
from rl.envs.gym._leaves import SpaceLeaf, as_exact_array, indices
from rl.envs.gym._make import gymnasium

spaces = gymnasium.spaces


Conversion = tuple[TensorSpec, Callable[[Sequence[Any]], Any], Callable[[Tensor], list[Any]]]
Converter = Callable[[Any, bool], Conversion]


def _rows(tensor: Tensor) -> list[Any]:
    return list(np.array(tensor.numpy(force=True)))  # a copy: simulators may write into their action


_WIDER: dict[str, Any] = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}
"""Dtypes of tensors for those of NumPy for which torch has few operations."""


def _box_dtype(space: Any) -> Any:
    """Return the dtype of the tensors of a box.

    Raises:
        SpecError: If torch has none that holds its values.
    """
    dtype = np.dtype(_WIDER.get(space.dtype.name, space.dtype))
    try:
        torch.from_numpy(np.empty(0, dtype))
    except TypeError:
        raise SpecError(f"torch has no dtype for {space.dtype} of {space}: convert it in a wrapper") from None
    if dtype != space.dtype and (space.high > np.iinfo(dtype).max).any():
        raise SpecError(f"{space} exceeds int64, the widest integers of torch: declare lower bounds in the simulator")
    return dtype


def _box(space: Any, categorical: bool) -> Conversion:  # noqa: FBT001  one form for all
    del categorical
    dtype = _box_dtype(space)
    low, high = torch.from_numpy(space.low.astype(dtype)), torch.from_numpy(space.high.astype(dtype))
    free = low.is_floating_point() and low.numel() > 0 and bool((low.isinf() & high.isinf()).all())
    spec = Unbounded(space.shape, dtype=low.dtype) if free else Bounded(low, high, shape=space.shape, dtype=low.dtype)
    return spec, partial(as_exact_array, dtype=dtype), lambda t: list(np.array(t.numpy(force=True), dtype=space.dtype))


def _discrete(space: Any, categorical: bool) -> Conversion:  # noqa: FBT001
    n, start = int(space.n), int(space.start)
    number = np.dtype(space.dtype)  # spaces check NumPy's numbers faster than Python's
    if categorical:
        spec = Categorical(n)
        return (
            spec,
            lambda values: indices(values, start, n),
            lambda t: list(np.array(t.tolist(), number) + start),
        )

    def encode(values: Sequence[Any]) -> Any:
        chosen = indices(values, start, n)
        out = np.zeros((*chosen.shape, n), dtype=np.int64)
        np.put_along_axis(out, chosen[..., None], 1, -1)
        return out

    def decode(tensor: Tensor) -> list[Any]:
        return list(np.array([row.index(1) for row in tensor.tolist()], number) + start)

    return OneHot(n, dtype=torch.int64), encode, decode


def _multi_discrete(space: Any, categorical: bool) -> Conversion:  # noqa: FBT001
    start, nvec = np.array(space.start), np.array(space.nvec)
    if categorical:
        spec = MultiCategorical(torch.as_tensor(space.nvec), shape=space.shape)
        return (
            spec,
            lambda values: indices(values, start, nvec),
            lambda t: list(np.array(t.numpy(force=True), dtype=space.dtype) + start),
        )
    if len(space.shape) != 1:
        raise SpecError(
            f"{space} has {len(space.shape)} dimensions and no one-hot form: pass categorical_action_encoding=True"
        )
    sizes = [int(n) for n in space.nvec]
    ends = np.cumsum(sizes)
    begins = ends - np.array(sizes)

    def encode(values: Sequence[Any]) -> Any:
        out = np.zeros((len(values), int(ends[-1])), dtype=np.int64)
        np.put_along_axis(out, indices(values, start, nvec) + begins, 1, axis=1)
        return out

    def decode(tensor: Tensor) -> list[Any]:
        array = tensor.numpy(force=True)
        parts = [array[:, a:b].argmax(1) for a, b in zip(begins, ends, strict=True)]
        return list(np.stack(parts, 1).astype(space.dtype) + start)

    return MultiOneHot(sizes, dtype=torch.int64), encode, decode


def _multi_binary(space: Any, categorical: bool) -> Conversion:  # noqa: FBT001
    del categorical
    spec = Binary(shape=space.shape, dtype=torch.int8)
    return spec, lambda values: indices(values, 0, 2).astype(np.int8), _rows


def _text(space: Any, categorical: bool) -> Conversion:  # noqa: FBT001
    del space, categorical
    return NonTensor(), list, lambda rows: [_as_text(row) for row in rows or [None]]


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise SpecError(f"an action of text has no random values, and must be a string, got {value!r:.80}: pass a policy")


_CONVERTERS: dict[type, Converter] = {
    spaces.Box: _box,
    spaces.Discrete: _discrete,
    spaces.MultiDiscrete: _multi_discrete,
    spaces.MultiBinary: _multi_binary,
    spaces.Text: _text,
}


def register_gym_spec_conversion(space_type: type) -> Callable[[Converter], Converter]:
    """Teach the wrappers a space of your own.

    Args:
        space_type: Subclass of `gymnasium.Space`; its subclasses are covered too.

    Returns:
        A decorator for ``convert(space, categorical)``, which returns the spec of one element, a function from
        a list of the simulator's values to one fresh array ``[n, *shape]``, and a function from a tensor
        ``[n, *shape]`` to such a list.

    Example:
        >>> import gymnasium, numpy as np
        >>> class Angle(gymnasium.Space): ...
        >>> @register_gym_spec_conversion(Angle)
        ... def angle(space, categorical):
        ...     return Unbounded(1), lambda v: np.array(v, np.float32)[:, None], lambda t: t[:, 0].tolist()
        >>> space_spec(Angle())
        UnboundedContinuous(...
    """

    def register(converter: Converter) -> Converter:
        _CONVERTERS[space_type] = converter
        return converter

    return register


def _convert(space: Any, *, categorical: bool) -> Conversion:
    for kind in type(space).__mro__:
        if kind in _CONVERTERS:
            return _CONVERTERS[kind](space, categorical)
    minigrid = sys.modules.get("minigrid.core.mission")
    if minigrid is not None and isinstance(space, minigrid.MissionSpace):  # texts, as in `Text`
        return _text(space, categorical)
    known = ", ".join(sorted(kind.__name__ for kind in _CONVERTERS))
    raise SpecError(
        f"no spec is known for the space {space} (known: Dict, Tuple, {known}); register one with"
        " rl.envs.register_gym_spec_conversion, or remove the space with a wrapper: GymEnv(..., wrappers=[...]),"
        " `rl train --wrapper`"
    )


def _walk(space: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            yield from _walk(part, (*path, name))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _walk(part, (*path, index))
    else:
        yield path, space


def places(space: Any, name: str, *, categorical: bool, under_name: bool) -> list[SpaceLeaf]:
    """Return the leaves of a space.

    Args:
        space: A Gymnasium space.
        name: The key of a space that is a leaf itself.
        categorical: Whether to use integers rather than one-hot vectors for choices.
        under_name: Whether to put the leaves of a `Dict` under `name` too, not at the root. Those of a `Tuple` always
            are.
    """
    found: list[SpaceLeaf] = []
    for path, leaf in _walk(space, ()):
        rooted = isinstance(space, spaces.Dict) and not under_name
        parts = tuple(str(part) for part in path)
        found.append(space_leaf(path, unwrap(parts if rooted else (name, *parts)), leaf, categorical))
    return found


def space_leaf(path: tuple[Any, ...], key: NestedKey, space: Any, categorical: bool) -> SpaceLeaf:  # noqa: FBT001  pickled so
    """Return the leaf `space` that lies at `path` in the simulator's value and at `key` in a TensorDict."""
    spec, encode, decode = _convert(space, categorical=categorical)
    encode_one, decode_one = _for_one(space, spec, encode, decode)
    made_by = (space_leaf, path, key, space, categorical)
    encode, encode_one = _naming(key, space, encode), _naming(key, space, encode_one)
    return SpaceLeaf(path, key, spec, encode, decode, encode_one, decode_one, made_by, _for_rows(space, spec))


def _naming(key: NestedKey, space: Any, encode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`encode` with errors that name the entry."""

    def name_entry(value: Any) -> Any:
        try:
            return encode(value)
        except (SpecError, TypeError, ValueError, OverflowError) as error:
            raise SpecError(
                f"{key_str(key)} of the simulator does not fit {space!s:.80}: {error}. Correct the space, or what the"
                " simulator returns"
            ) from error

    return name_entry


def _for_rows(space: Any, spec: TensorSpec) -> Callable[[Tensor], Any] | None:
    """`decode` into one array, for the spaces where that is much faster."""
    if _CONVERTERS.get(type(space)) is _box:
        return lambda tensor: np.array(tensor.numpy(force=True), dtype=space.dtype)
    if _CONVERTERS.get(type(space)) is _discrete:
        start, hot = int(space.start), isinstance(spec, OneHot)
        return lambda tensor: (tensor.argmax(-1) if hot else tensor).numpy(force=True) + start
    return None


def _for_one(
    space: Any, spec: TensorSpec, encode: Callable[[Sequence[Any]], Any], decode: Callable[[Tensor], list[Any]]
) -> tuple[Callable[[Any], Any], Callable[[Tensor], Any]]:
    """`encode` and `decode` without a batch; written out for the spaces where that is much faster."""

    def encode_one(value: Any) -> Any:
        rows = encode([value])
        return rows[0] if isinstance(rows, list) else rows.reshape(rows.shape[1:])

    if _CONVERTERS.get(type(space)) is _box:
        return encode, lambda tensor: np.array(tensor.numpy(force=True), dtype=space.dtype)
    if _CONVERTERS.get(type(space)) is _discrete:
        start, n, number, hot = int(space.start), int(space.n), np.dtype(space.dtype).type, isinstance(spec, OneHot)

        def encode_choice(value: Any) -> Any:
            chosen = int(value) - start if isinstance(value, int | np.integer) else -1  # int: a uint8 could overflow
            if not 0 <= chosen < n:
                return encode_one(value)  # says what is wrong
            if not hot:
                return np.array(chosen, np.int64)
            out = np.zeros(n, np.int64)
            out[chosen] = 1
            return out

        if hot:
            return encode_choice, lambda tensor: number(tensor.tolist().index(1) + start)
        return encode_choice, lambda tensor: number(tensor.item() + start)
    if isinstance(spec, NonTensor):
        return encode_one, _as_text
    return encode_one, lambda tensor: decode(tensor.unsqueeze(0))[0]


def space_spec(space: Any, name: str = "observation", *, categorical: bool = False) -> TensorSpec:
    """Return the spec of a space, of one element: a leaf, or a `Composite` for `Dict` and `Tuple`.

    Example:
        >>> import gymnasium
        >>> space_spec(gymnasium.spaces.Discrete(3), categorical=True).n
        3
    """
    found = places(space, name, categorical=categorical, under_name=False)
    if len(found) == 1 and not found[0].path:
        return found[0].spec
    return Composite({place.key: place.spec for place in found})
