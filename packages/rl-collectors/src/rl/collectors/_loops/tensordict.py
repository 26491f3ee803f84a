"""Inner loop for an environment without a leaf form, on TensorDicts."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tensordict import TensorDictBase

from rl.collectors._loops.leaves import TensorDictAct, TensorDictStep, leaves_of, tensordict_of
from rl.core.interfaces import Env, Leaves
from rl.core.keys import NEXT, NestedKey

__all__ = ["TensorDictLoop"]


class TensorDictLoop:
    """Loop over an `Env` that keeps the root of the next step.

    The environment may return the same buffers at every step, so each step is copied before the next one.

    Args:
        env: environment of the protocol.
        groups: batch sizes of groups.
    """

    def __init__(self, env: Env, groups: Mapping[NestedKey, torch.Size]) -> None:
        self._env, self._groups = env, groups
        self._td: TensorDictBase | None = None

    @property
    def root(self) -> Leaves | None:
        """Root of the next step; None for a reset."""
        return None if self._td is None else leaves_of(self._td)

    @root.setter
    def root(self, leaves: Leaves | None) -> None:
        self._td = None if leaves is None else tensordict_of(leaves, self._env.batch_size, self._groups)

    def run(
        self, steps: int, act: TensorDictAct, step: TensorDictStep, roots: list[Leaves], nexts: list[Leaves]
    ) -> None:
        """Take `steps` steps and append their entries to `roots` and `nexts`.

        Args:
            steps: number of steps.
            act: policy.
            step: step of the environment, with the reset of done elements.
            roots: list for one dict a step: observations, flags, policy outputs.
            nexts: list for one dict a step: entries under ``next``.
        """
        td = self._env.reset() if self._td is None else self._td
        self._td = None  # after an exception the environment is at an unknown step
        for _ in range(steps):
            acted = act(td)
            roots.append(leaves_of(acted.exclude(NEXT).clone()))
            stepped, td = step(acted)
            nexts.append(leaves_of(stepped.get(NEXT).clone()))
        self._td = td
