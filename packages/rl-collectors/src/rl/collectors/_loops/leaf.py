"""The inner loop for an environment that has a leaf form: no TensorDict, one dict of tensors per step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from rl.core.interfaces import LeafEnv, Leaves
from rl.core.keys import DONE, NestedKey

__all__ = ["LeafAct", "LeafLoop", "LeafStep"]

LeafAct = Callable[[Leaves], Leaves | None]
"""Writes what a policy writes at the root into the root, and returns what it writes under ``next``, or None."""

LeafStep = Callable[[Leaves], Leaves]
"""`LeafEnv.step_leaves`, or that with something around it."""


Around = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""Wraps a function that is timed under a name; see `Clock.around`."""


def _as_it_is(_: str, function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class LeafLoop:
    """Drives a `LeafEnv` and keeps the root of the coming step; None there stands for a reset.

    Args:
        env: the environment's leaf form.
        rewards: the reward keys; they are written under ``next`` and never carried to the root.
        around: puts a clock around resets.
        acts: the action keys, if whatever else the policy writes at the root is carried to the following root, as
            `rl.core.step_mdp` does; None for a policy of known inputs, which needs none of it.
    """

    def __init__(
        self,
        env: LeafEnv,
        rewards: Iterable[NestedKey],
        around: Around = _as_it_is,
        acts: Iterable[NestedKey] | None = None,
    ) -> None:
        self.root: Leaves | None = None
        self.reset = around("env", env.reset_leaves)
        self._rewards = list(rewards)
        self._acts = None if acts is None else list(acts)
        # reading one flag is eight times cheaper than a reduction
        self._any: Callable[[Tensor], Tensor] = _itself if env.batch_size.numel() == 1 else Tensor.any

    def run(self, steps: int, act: LeafAct, step: LeafStep, roots: list[Leaves], nexts: list[Leaves]) -> None:
        """Take `steps` steps and append to `roots` and `nexts` what they read and wrote.

        Args:
            steps: how many.
            act: the policy.
            step: the environment's step.
            roots: gets one dict a step: observations, flags, policy outputs.
            nexts: gets one dict a step: what belongs under ``next``.
        """
        root = self.reset() if self.root is None else self.root
        self.root = None  # whatever interrupts the loop, the environment has moved on
        rewards, any_of, reset, acts = self._rewards, self._any, self.reset, self._acts
        known, constants = list(root), None
        for _ in range(steps):
            extra = act(root)
            roots.append(root)
            nxt = step(root)
            if extra:
                nxt = {**extra, **nxt}
            nexts.append(nxt)
            if constants is None:  # what a reset writes and no step does stays as it is
                kept = known if acts is None else [*known, *[key for key in root if key not in (*known, *acts)]]
                constants = [key for key in kept if key not in nxt]
            carried = nxt.copy()
            for key in rewards:
                del carried[key]
            for key in constants:
                carried[key] = root[key]
            done = nxt[DONE]
            if any_of(done):
                carried.update(reset(carried, done))
            root = carried
        self.root = root


def _itself(done: Tensor) -> Tensor:
    return done
