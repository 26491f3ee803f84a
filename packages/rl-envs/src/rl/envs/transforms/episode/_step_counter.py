"""`StepCounter`: counts the steps of an episode and can end it."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, as_tuple, unwrap
from rl.core.specs import Bounded
from rl.envs.base._specs import flag_spec
from rl.envs.transforms._base import Transform
from rl.envs.transforms._checks import from_root
from rl.envs.transforms._levels import level_keys
from rl.envs.transforms._specs import Specs

__all__ = ["StepCounter"]

_LONGEST = torch.iinfo(torch.int64).max


class StepCounter(Transform):
    """Writes how many steps the episode has had, and truncates it after `max_steps`.

    Reads ``done`` and ``truncated``; writes ``step_count`` (int64, the shape of ``done``) at the root and under
    ``next``, and, with `max_steps`, ``truncated`` and ``done`` under ``next``.

    Args:
        max_steps: length at which an episode is truncated, at least 1; never if None.
        truncated_key: the flag to write, next to a ``done``: a name for every done group (the root's only, if it has
            one), or a path for one group.
        step_count_key: where the count goes, in the same way.
        update_done: must be true where there is a `max_steps`: truncation sets ``done`` too.

    Raises:
        SpecError: if `max_steps` is below 1, `update_done` is false, or the environment has no such ``done``.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(), StepCounter(max_steps=2))
        >>> env.rollout(5)["next", "truncated"].flatten()
        tensor([False,  True])
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self,
        max_steps: int | None = None,
        truncated_key: NestedKey = "truncated",
        step_count_key: NestedKey = "step_count",
        *,
        update_done: bool = True,
    ) -> None:
        if max_steps is not None and (not isinstance(max_steps, int) or max_steps < 1):
            raise SpecError(f"StepCounter: max_steps must be an integer of at least 1, got {max_steps}")
        if max_steps is not None and not update_done:
            raise SpecError(
                "StepCounter: update_done=False sets 'truncated' without 'done', but done = terminated | truncated;"
                " to mark steps and not end the episode, leave max_steps out and compare 'step_count'"
            )
        super().__init__()
        self.max_steps = max_steps
        self.update_done = update_done
        self.truncated_key = unwrap(truncated_key)
        self.step_count_key = unwrap(step_count_key)
        self.out_keys = [self.step_count_key]

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        for count, truncated, done in self._levels:
            root[count] = torch.zeros_like(root[done], dtype=torch.int64)
            if self.max_steps is not None and root.get(truncated, None) is None:
                root[truncated] = torch.zeros_like(root[done])
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        for key, truncated_key, done in self._levels:
            outcome[key] = count = from_root(root, key, self) + 1
            if self.max_steps is None:
                continue
            truncated = outcome.get(truncated_key, None)
            if truncated is not None and not count.is_cuda and count.numel() == 1 and count.item() < self.max_steps:
                continue  # by far the most frequent case of a single environment: nothing changes
            over = count >= self.max_steps
            outcome[truncated_key] = over if truncated is None else truncated | over
            outcome[done] = outcome[done] | over
        return outcome

    def transform_specs(self, specs: Specs) -> None:
        """Add the count to the observation, and ``truncated`` to the flags if episodes are truncated."""
        flags = level_keys(specs, self.truncated_key, self)
        *own, name = as_tuple(self.step_count_key)
        self._levels = [(unwrap((*(own or as_tuple(done)[:-1]), name)), truncated, done) for truncated, done in flags]
        self.out_keys = [count for count, _, _ in self._levels]
        high = _LONGEST if self.max_steps is None else self.max_steps
        for count, truncated, done in self._levels:
            shape = specs.done[done].shape
            specs.add("observation", count, Bounded(0, high, shape=shape, dtype=torch.int64, device=specs.device), self)
            if self.max_steps is not None and specs.done.get(truncated, None) is None:
                specs.done[truncated] = flag_spec(shape, specs.device)
