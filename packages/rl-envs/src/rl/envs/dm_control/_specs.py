"""Specs of dm_env as places: our spec of each array, and how values become tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, unwrap
from rl.core.specs import Bounded, Categorical, OneHot, TensorSpec, Unbounded
from rl.envs.gym._places import Place, exactly, indices

__all__ = ["array_places"]


def array_places(spec: Any, name: str, *, categorical: bool, action: bool) -> list[Place]:
    """Return the leaves of a spec of dm_env, or of a mapping or sequence of them.

    Args:
        spec: ``dm_env.specs.Array``, or a mapping or sequence of them.
        name: key of a spec that is a leaf itself.
        categorical: integers instead of one-hot vectors for a `DiscreteArray`.
        action: put the leaves of a mapping under `name` too, not at the root (those of a sequence always are), and
            take float64 as float32, the dtype that policies write.

    Raises:
        SpecError: if a leaf has no shape and dtype, or its dtype is that of text.
    """
    if isinstance(spec, Mapping):
        found = [((part,), (name, part) if action else (part,), leaf) for part, leaf in spec.items()]
    elif isinstance(spec, Sequence):
        found = [((index,), (name, str(index)), leaf) for index, leaf in enumerate(spec)]
    else:
        found = [((), (name,), spec)]
    return [array_place(path, unwrap(key), leaf, categorical, action) for path, key, leaf in found]


def array_place(path: tuple[Any, ...], key: NestedKey, spec: Any, categorical: bool, action: bool) -> Place:  # noqa: FBT001  pickled so
    """Return the leaf `spec` that lies at `path` in the simulator's value and at `key` in a TensorDict."""
    kind = np.dtype(getattr(spec, "dtype", object)).kind
    if not hasattr(spec, "shape") or kind not in "biuf":
        raise SpecError(
            f"no spec is known for {key!r} of dm_env, {spec!r:.200}: it must be an array of numbers; leave it out with"
            " a wrapper of the simulator"
        )
    made_by = (array_place, path, key, spec, categorical, action)
    if hasattr(spec, "num_values"):
        return Place(path, key, *_choice(int(spec.num_values), spec.dtype, categorical=categorical), made_by)
    return Place(path, key, *_array(spec, action=action), made_by)


Conversion = tuple[
    TensorSpec,
    Callable[[Sequence[Any]], Any],
    Callable[[Tensor], list[Any]],
    Callable[[Any], Any],
    Callable[[Tensor], Any],
]


def _array(spec: Any, *, action: bool) -> Conversion:
    """Numbers of any shape; a single number becomes a vector of length 1."""
    shape, own, theirs = tuple(spec.shape) or (1,), tuple(spec.shape), np.dtype(spec.dtype)
    dtype = np.dtype(np.float32) if action and theirs == np.float64 else theirs
    torch_dtype = torch.from_numpy(np.empty(0, dtype)).dtype
    ours: TensorSpec = Unbounded(shape, dtype=torch_dtype)
    if hasattr(spec, "minimum"):
        low, high = (np.broadcast_to(bound, shape).astype(dtype) for bound in (spec.minimum, spec.maximum))
        if low.size == 0 or not (np.isinf(low) & np.isinf(high)).all():
            ours = Bounded(torch.from_numpy(low), torch.from_numpy(high), shape=shape, dtype=torch_dtype)

    def encode(values: Sequence[Any]) -> Any:
        array = exactly(values, dtype)
        return array if own else array.reshape(-1, 1)

    def decode(tensor: Tensor) -> list[Any]:  # copies: a simulator may write into its action
        array = np.array(_numpy(tensor), dtype=theirs)
        return list(array if own else array.reshape(-1))

    def decode_one(tensor: Tensor) -> Any:
        return np.array(_numpy(tensor), dtype=theirs).reshape(own)

    return (
        ours,
        encode,
        decode,
        (lambda value: exactly(value, dtype)) if own else lambda value: exactly([value], dtype),
        decode_one,
    )


def _numpy(tensor: Tensor) -> Any:
    return tensor.numpy(force=tensor.requires_grad or not tensor.is_cpu)  # the plain call costs half


def _choice(n: int, dtype: Any, *, categorical: bool) -> Conversion:
    kind = np.dtype(dtype).type

    def index(tensor: Tensor) -> Any:
        return kind(int(tensor) if categorical else tensor.tolist().index(1))

    def encode_one(value: Any) -> Any:
        chosen = indices(value, 0, n)
        if categorical:
            return chosen
        out = np.zeros(n, dtype=np.int64)
        out[chosen] = 1
        return out

    return (
        Categorical(n) if categorical else OneHot(n, dtype=torch.int64),
        lambda values: np.stack([encode_one(value) for value in values]),
        lambda tensor: [index(row) for row in tensor],
        encode_one,
        index,
    )
