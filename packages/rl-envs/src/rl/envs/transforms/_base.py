"""`Transform`: base class of transforms."""

# ruff: noqa: SLF001  # a transform calls its own hooks

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, ClassVar, Protocol, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import RLError
from rl.core.keys import NestedKey, unwrap
from rl.core.specs import Composite
from rl.envs.base._base import EnvBase

__all__ = ["Parent", "Transform"]


class Parent(Protocol):
    """The environment that a transform belongs to: a `TransformedEnv`."""

    base_env: EnvBase
    batch_size: torch.Size
    device: torch.device | None

    def refresh(self) -> None:
        """Derive the specs again."""
        ...


class Transform:
    """Base class of transforms of the entries that an environment writes, and of the actions that it reads.

    A hook receives *entries* that it may write: a TensorDict, or, if the class sets `leafwise`, also a plain dict of
    tensors by flat key. Both have ``entries[key]``, ``entries[key] = value`` and ``entries.get(key, None)``. No tensor
    may be changed in place: batches share it.

    - ``_call(entries)`` maps the entries of a reset or of a step. Most transforms override nothing else.
    - ``_reset(root, mask)`` maps the root entries of new episodes; ``_call`` by default. Write *every* row: the caller
      replaces rows outside the mask by the current ones.
    - ``_step(root, outcome)`` maps the entries under ``next``, given the root of the step; ``_call`` by default.
    - ``_inv(root)`` maps the root entries before the environment reads its action.
    - ``transform_observation_spec``, ``..._reward_spec``, ``..._done_spec``, ``..._action_spec`` and
      ``..._state_spec`` map the specs of one element, and may write them. ``transform_action_spec`` maps the action
      spec of the environment to that of the caller.

    A transform belongs to one environment: `clone` it for another.

    Args:
        in_keys: keys that it reads, from the environment to the caller.
        out_keys: keys that it writes, in the same direction; `in_keys` if None.

    Example:
        >>> class Negate(Transform):
        ...     leafwise = True
        ...     def _call(self, entries):
        ...         entries["observation"] = -entries["observation"]
        ...         return entries
        >>> Negate(in_keys=["observation"])
        Negate(keys=['observation'])
    """

    leafwise: ClassVar[bool] = False
    """Whether the hooks also run on a dict of tensors."""

    def __init__(self, in_keys: Iterable[NestedKey] = (), out_keys: Iterable[NestedKey] | None = None) -> None:
        self.in_keys: list[NestedKey] = [unwrap(key) for key in in_keys]
        self.out_keys: list[NestedKey] = [unwrap(key) for key in (self.in_keys if out_keys is None else out_keys)]
        self._parent: Parent | None = None

    # ---- written by the author

    def _call(self, entries: Any) -> Any:
        return entries

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        return self._call(root)

    def _step(self, root: Any, outcome: Any) -> Any:
        del root
        return self._call(outcome)

    def _inv(self, root: Any) -> Any:
        return root

    def transform_observation_spec(self, spec: Composite) -> Composite:
        """Map the observation spec."""
        return spec

    def transform_reward_spec(self, spec: Composite) -> Composite:
        """Map the reward spec."""
        return spec

    def transform_done_spec(self, spec: Composite) -> Composite:
        """Map the done spec."""
        return spec

    def transform_action_spec(self, spec: Composite) -> Composite:
        """Map the action spec of the environment to that of the caller."""
        return spec

    def transform_state_spec(self, spec: Composite) -> Composite:
        """Map the state spec."""
        return spec

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the transform: tensors and plain containers."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Continue from `state`."""

    # ---- called by users

    def is_leafwise(self) -> bool:
        """Whether the hooks run on plain dicts of tensors."""
        return self.leafwise

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Apply the transform to a collected batch: to its root, and to its ``next``.

        Returns:
            A new TensorDict; `tensordict` stays as it is.
        """
        self._need_call()
        out = self._call(tensordict.copy())
        outcome = tensordict.get("next", None)
        return out if outcome is None else out.set("next", self._call(outcome.copy()))

    def _need_call(self) -> None:
        if type(self)._call is Transform._call:
            raise RLError(
                f"{type(self).__name__} needs the order of an episode and cannot transform a batch: append it to the"
                " environment"
            )

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.forward(tensordict)

    @property
    def parent(self) -> Parent | None:
        """The environment to which it belongs."""
        return self._parent

    def set_parent(self, parent: Parent | None) -> None:
        """Set the environment of the transform, or remove it with None.

        Raises:
            RLError: if it belongs to another one.
        """
        if parent is not None and self._parent is not None and self._parent is not parent:
            raise RLError(f"{self!r} belongs to another environment already; give this one its own: append a clone()")
        self._parent = parent

    def clone(self) -> Self:
        """Return a copy that belongs to no environment."""
        parent, self._parent = self._parent, None
        try:
            return copy.deepcopy(self)
        finally:
            self._parent = parent

    def __repr__(self) -> str:
        return f"{type(self).__name__}(keys={self.in_keys})"
