"""`SelectTransform`: only some observations."""

from __future__ import annotations

from typing import Any, ClassVar

from tensordict import TensorDictBase

from rl.core.keys import NestedKey, as_tuple, unwrap
from rl.envs import _foreign
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["SelectTransform"]

_FLAGS = ("done", "terminated", "truncated")


@_foreign.select
class SelectTransform(Transform):
    """Keeps the selected observations and removes the others; rewards, done flags and state entries stay.

    On a batch with a ``next``, observations are the entries that are at the root and under ``next``, except done flags.
    A batch without it, or keys of which one begins with ``"next"``, are taken literally: only the selected entries
    stay.

    Order: transforms after it see the selected entries only.

    Args:
        selected_keys: keys of entries or of nested groups.

    Raises:
        SpecError: if the environment does not write one.

    Example:
        >>> from rl.envs import CartPoleEnv, TransformedEnv
        >>> list(TransformedEnv(CartPoleEnv(), SelectTransform("observation")).observation_spec.keys())
        ['observation', 'state']
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, *selected_keys: NestedKey) -> None:
        super().__init__()
        self.selected_keys = [unwrap(key) for key in selected_keys]
        self._removed: list[NestedKey] = []

    def _call(self, entries: Any) -> Any:
        for key in self._removed:
            if entries.get(key, None) is not None:
                del entries[key]
        return entries

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a batch without the other observations."""
        following = tensordict.get("next", None)
        if following is None or any(as_tuple(key)[0] == "next" for key in self.selected_keys):
            return tensordict.select(*self.selected_keys, strict=False)
        both = set(leaf_keys(following)) & set(leaf_keys(tensordict))
        others = [key for key in both if as_tuple(key)[-1] not in _FLAGS and not self._keeps(key)]
        return tensordict.exclude(*others, *[("next", *as_tuple(key)) for key in others])

    def transform_specs(self, specs: Specs) -> None:
        """Remove the specs of the other observations."""
        for key in self.selected_keys:
            specs.written(key, self)
        state = set(leaf_keys(specs.state))
        self._removed = [key for key in leaf_keys(specs.observation) if key not in state and not self._keeps(key)]
        for key in self._removed:
            del specs.observation[key]

    def _keeps(self, key: NestedKey) -> bool:
        path = as_tuple(key)
        return any(path[: len(as_tuple(one))] == as_tuple(one) for one in self.selected_keys)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.selected_keys))})"
