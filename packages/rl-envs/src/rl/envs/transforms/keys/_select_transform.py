"""`SelectTransform`: only some observations."""

from __future__ import annotations

from typing import Any, ClassVar

from rl.core.keys import NestedKey, as_tuple, unwrap
from rl.envs import _foreign
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["SelectTransform"]


@_foreign.select
class SelectTransform(Transform):
    """Keeps the selected observations and removes the others; rewards, done flags and state entries stay.

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
