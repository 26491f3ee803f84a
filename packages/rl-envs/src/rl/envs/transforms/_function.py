"""Transform of a function from TensorDict to TensorDict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, unwrap
from rl.core.specs import Composite, Unbounded
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["FunctionTransform", "as_transform"]


class FunctionTransform(Transform):
    """Transform that applies a function at the root after a reset and under ``next`` after a step.

    Its specs are found by running it once on zeros of one element: every entry that the function adds or changes gets
    an unbounded spec.

    Args:
        function: from TensorDict to TensorDict; it must not change tensors in place.
    """

    def __init__(self, function: Callable[[TensorDictBase], TensorDictBase]) -> None:
        super().__init__()
        self.function = function

    def _call(self, entries: Any) -> Any:
        out = self.function(entries)
        if not isinstance(out, TensorDictBase):
            raise SpecError(f"the transform {self!r} returned {type(out).__name__}, expected a TensorDict")
        return out

    def _mapped(self, spec: Composite) -> Composite:
        before = spec.zero()
        after = self._call(before.copy())
        out = Composite({})
        kept: set[NestedKey] = set(leaf_keys(spec))
        for path, value in after.items(include_nested=True, leaves_only=True):
            key = unwrap(path)
            same = key in kept and value is before.get(key, None)
            out[key] = spec[key] if same else Unbounded(value.shape, device=value.device, dtype=value.dtype)
        return out

    def transform_specs(self, specs: Specs) -> None:
        specs.observation = self._mapped(specs.observation)

    def __repr__(self) -> str:
        return f"FunctionTransform({getattr(self.function, '__name__', type(self.function).__name__)})"


def as_transform(one: Any) -> Transform:
    """Return `one` if it is a transform, or a transform that calls it.

    Raises:
        SpecError: if it is neither, or has an inverse and is not a `Transform`.
    """
    if isinstance(one, Transform):
        return one
    if hasattr(one, "inv") and not isinstance(one, type):
        raise SpecError(
            f"{type(one).__name__} has an inverse, for batches that a buffer writes: append it to the replay buffer;"
            " in an environment, inherit from Transform"
        )
    if isinstance(one, type):
        raise SpecError(f"a transform is an object, got the class {one.__name__}: write {one.__name__}(...)")
    if callable(one):
        function: Any = one
        return FunctionTransform(function)
    raise SpecError(f"a transform is a Transform or a function from TensorDict to TensorDict, got {type(one).__name__}")
