"""Transform of a function from TensorDict to TensorDict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tensordict import TensorDict, TensorDictBase

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.specs import Composite, Unbounded
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["FunctionTransform", "as_transform"]


class FunctionTransform(Transform):
    """Transform that applies a function at the root after a reset and under ``next`` after a step.

    On a batch it is called with the root and with ``next``; or once with the batch, if it changes entries under
    ``next`` itself, as functions for replay buffers do. An environment refuses such a function.

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

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Apply the function to a batch."""
        outcome = tensordict.get("next", None)
        out = self._call(tensordict.copy())
        if outcome is None or _changed_keys(outcome, out.get("next", None)):
            return out
        return out.set("next", self._call(outcome.copy()))

    def _check_keys(self, specs: Specs) -> None:
        """Raise a SpecError if the function is one of a batch: if it changes what is under ``next`` alone."""
        entries = TensorDict({})
        for spec in (specs.observation, specs.reward, specs.done):
            entries.update(spec.zero())
        probe = entries.copy().set("next", entries.copy())
        try:
            out = self._call(probe.copy())
        except Exception:  # noqa: BLE001  judged on the entries of a reset, see `_mapped`
            return
        below = _changed_keys(entries, out.get("next", None))
        only = [key for key in below if out.get(key, None) is entries.get(key, None)]
        if only:
            raise SpecError(
                f"{self!r} changes {key_str(('next', *as_tuple(only[0])))}; in an environment a function is called with"
                f" what a step wrote by itself: read and write {key_str(only[0])}. A function of batches belongs in a"
                " replay buffer"
            )

    def transform_specs(self, specs: Specs) -> None:
        self._check_keys(specs)
        specs.observation = self._mapped(specs.observation)

    def __repr__(self) -> str:
        return f"FunctionTransform({getattr(self.function, '__name__', type(self.function).__name__)})"


def _changed_keys(before: TensorDictBase, after: TensorDictBase | None) -> list[NestedKey]:
    """The keys of entries that were replaced, added or removed."""
    left, right = dict(_leaves(before)), {} if after is None else dict(_leaves(after))
    return [key for key in (*left, *(key for key in right if key not in left)) if left.get(key) is not right.get(key)]


def _leaves(entries: TensorDictBase) -> Iterator[tuple[NestedKey, Any]]:
    for path, value in entries.items(include_nested=True, leaves_only=True):
        yield unwrap(path), value


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
