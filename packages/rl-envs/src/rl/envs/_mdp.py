"""From one step to the root of the next, with the keys known in advance."""

from __future__ import annotations

from collections.abc import Iterable

from rl.core.keys import NestedKey, as_tuple, unwrap
from tensordict import TensorDict, TensorDictBase

__all__ = ["Advance"]


class Advance:
    """Moves ``next`` to the root. Makes new containers and shares their tensors.

    Args:
        drop: keys that do not go on: rewards, actions, reset masks.

    Example:
        >>> import torch
        >>> td = TensorDict(goal=torch.ones(1), action=torch.ones(1), next={"observation": torch.zeros(1)})
        >>> sorted(Advance(["action"])(td).keys())
        ['goal', 'observation']
    """

    def __init__(self, drop: Iterable[NestedKey]) -> None:
        self._drop: set[str] = set()
        self._nested: dict[str, Advance] = {}
        below: dict[str, list[NestedKey]] = {}
        for key in drop:
            first, *rest = as_tuple(key)
            if rest:
                below.setdefault(first, []).append(unwrap(rest))
            else:
                self._drop.add(first)
        self._nested = {first: Advance(keys) for first, keys in below.items()}
        self._plain = Advance([]) if self._nested else self

    def __call__(self, td: TensorDictBase) -> TensorDictBase:
        return self._join(td, td.get("next"))

    def _join(self, root: TensorDictBase, outcome: TensorDictBase | None) -> TensorDictBase:
        out = {}
        sources = (root,) if outcome is None else (root, outcome)
        for source in sources:
            for key, value in source.items():
                if key in self._drop or key == "next":
                    continue
                if isinstance(value, TensorDictBase):
                    if source is root:
                        below = None if outcome is None else outcome.get(key, None)
                        out[key] = self._nested.get(key, self._plain)._join(value, below)
                    elif key not in out:
                        out[key] = self._nested.get(key, self._plain)._join(value, None)
                else:
                    out[key] = value
        return TensorDict(out, batch_size=root.batch_size, device=root.device, names=root.names if root._has_names() else None)
