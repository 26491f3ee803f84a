"""The inner loop for every other environment: TensorDicts in, TensorDicts out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from rl.core.interfaces import Env, Leaves
from rl.core.keys import NEXT

__all__ = ["TensorDictAct", "TensorDictLoop", "TensorDictStep", "leaves_of", "tensordict_of"]

TensorDictAct = Callable[[TensorDictBase], TensorDictBase]
"""A policy: returns its argument, or another TensorDict, with the actions."""

TensorDictStep = Callable[[TensorDictBase], tuple[TensorDictBase, TensorDictBase]]
"""`Env.step_and_maybe_reset`, or that with something around it."""


def leaves_of(tensordict: TensorDictBase) -> Leaves:
    """The entries by flat key, those that are no tensors included."""
    entries: Any = tensordict.items(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
    return dict(entries)


def tensordict_of(leaves: Leaves, batch_size: Any) -> TensorDict:
    """The inverse of `leaves_of`."""
    nested: dict[str, Any] = {}
    for key, leaf in leaves.items():
        if isinstance(key, str):
            nested[key] = leaf
            continue
        place = nested
        for part in key[:-1]:
            place = place.setdefault(part, {})
        place[key[-1]] = leaf
    return TensorDict(nested, batch_size=batch_size)


class TensorDictLoop:
    """Drives an `Env` and keeps the root of the coming step.

    An environment of unknown make may hand out the same buffers at every step, so that each step is copied
    before the next one begins.

    Args:
        env: any environment.
    """

    def __init__(self, env: Env) -> None:
        self._env = env
        self._td: TensorDictBase | None = None

    @property
    def root(self) -> Leaves | None:
        """The entries that the coming step starts from; None for a reset."""
        return None if self._td is None else leaves_of(self._td)

    @root.setter
    def root(self, leaves: Leaves | None) -> None:
        self._td = None if leaves is None else tensordict_of(leaves, self._env.batch_size)

    def run(
        self, steps: int, act: TensorDictAct, step: TensorDictStep, roots: list[Leaves], nexts: list[Leaves]
    ) -> None:
        """Take `steps` steps and append to `roots` and `nexts` what they read and wrote.

        Args:
            steps: how many.
            act: the policy.
            step: the environment's step with the reset of finished episodes.
            roots: gets one dict a step: observations, flags, policy outputs.
            nexts: gets one dict a step: what belongs under ``next``.
        """
        td = self._env.reset() if self._td is None else self._td
        self._td = None  # whatever interrupts the loop, the environment has moved on
        for _ in range(steps):
            acted = act(td)
            roots.append(leaves_of(acted.exclude(NEXT).clone()))
            stepped, td = step(acted)
            nexts.append(leaves_of(stepped.get(NEXT).clone()))
        self._td = td
