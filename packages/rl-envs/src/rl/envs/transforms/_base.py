"""`Transform`: the base of what changes entries between an environment and its user."""

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
    """Changes entries on their way out of an environment, and actions on their way in.

    The hooks get *entries*: something with ``entries[key]``, ``entries[key] = value`` and ``entries.get(key,
    None)``, which belongs to the hook and may be written. It is a TensorDict, or, if the class says `leafwise`, also
    a plain dict of tensors by flat key. No tensor in it may be changed in place: others hold it too.

    - ``_call(entries)`` maps a frame, whether it comes from a reset or a step. Often all that is needed.
    - ``_reset(root, mask)`` maps the root entries of new episodes; ``_call`` by default. Write what a new episode has
      in *every* row: rows outside the mask are replaced by the current ones later.
    - ``_step(root, outcome)`` maps what a step wrote under ``next``, given the entries from which it started;
      ``_call`` by default.
    - ``_inv(root)`` maps the root entries before the environment reads its action.
    - ``transform_observation_spec``, ``..._reward_spec``, ``..._done_spec``, ``..._action_spec``, ``..._state_spec``
    map the specs
      accordingly: composites of one element, which belong to the hook. An action spec is that of the
      environment and becomes that which the user sees.

    A transform belongs to one environment: `clone` it for another.

    Args:
        in_keys: what it reads, outwards.
        out_keys: what it writes, outwards; `in_keys` if None.

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
    """Whether the hooks need nothing of their entries that a dict of tensors does not have."""

    def __init__(self, in_keys: Iterable[NestedKey] = (), out_keys: Iterable[NestedKey] | None = None) -> None:
        self.in_keys: list[NestedKey] = [unwrap(key) for key in in_keys]
        self.out_keys: list[NestedKey] = [unwrap(key) for key in (self.in_keys if out_keys is None else out_keys)]
        self._parent: Parent | None = None

    # ---- what an author fills in

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
        """The observations that the user sees, of those that the environment writes."""
        return spec

    def transform_reward_spec(self, spec: Composite) -> Composite:
        """The rewards likewise."""
        return spec

    def transform_done_spec(self, spec: Composite) -> Composite:
        """The done flags likewise."""
        return spec

    def transform_action_spec(self, spec: Composite) -> Composite:
        """The actions that the user gives, of those that the environment takes."""
        return spec

    def transform_state_spec(self, spec: Composite) -> Composite:
        """The state likewise."""
        return spec

    def state_dict(self) -> dict[str, Any]:
        """What the transform remembers between steps: tensors and plain containers."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Continue with what `state_dict` returned."""

    # ---- what users call

    def is_leafwise(self) -> bool:
        """Whether the hooks run on plain dicts of tensors."""
        return self.leafwise

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Map a batch that was collected without the transform: its root, and its ``next``.

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
                f"{type(self).__name__} follows episodes and has no meaning for a batch on its own: append it to the"
                " environment"
            )

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self.forward(tensordict)

    @property
    def parent(self) -> Parent | None:
        """The environment to which it belongs."""
        return self._parent

    def set_parent(self, parent: Parent | None) -> None:
        """Give the transform to an environment, or take it back with None.

        Raises:
            RLError: if it belongs to another one.
        """
        if parent is not None and self._parent is not None and self._parent is not parent:
            raise RLError(f"{self!r} belongs to another environment already; give this one its own: append a clone()")
        self._parent = parent

    def clone(self) -> Self:
        """The same transform without an owner."""
        parent, self._parent = self._parent, None
        try:
            return copy.deepcopy(self)
        finally:
            self._parent = parent

    def __repr__(self) -> str:
        return f"{type(self).__name__}(keys={self.in_keys})"
