"""`StepCounter`: counts the steps of an episode and can end it."""

# an environment, its parts and its transforms call each other's hooks, which users do not

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.specs import Bounded, Composite
from rl.envs.base._specs import flag_spec, leaf_keys
from rl.envs.transforms._base import Transform
from rl.envs.transforms._checks import from_root

__all__ = ["StepCounter"]

_LONGEST = torch.iinfo(torch.int64).max


class StepCounter(Transform):
    """Writes how many steps the episode has had, and truncates it after `max_steps`.

    Reads ``done`` and ``truncated``; writes ``step_count`` (int64, the shape of ``done``) at the root and under
    ``next``, and, with `max_steps`, ``truncated`` and ``done`` under ``next``.

    Args:
        max_steps: length at which an episode is truncated, at least 1; never if None.
        truncated_key: the flag to write; the ``done`` beside it belongs to it.
        step_count_key: where the count goes.
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
        self._done_key = unwrap((*as_tuple(self.truncated_key)[:-1], "done"))

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        root[self.step_count_key] = torch.zeros_like(root[self._done_key], dtype=torch.int64)
        if self.max_steps is not None and root.get(self.truncated_key, None) is None:
            root[self.truncated_key] = torch.zeros_like(root[self._done_key])
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        count = from_root(root, self.step_count_key, self) + 1
        outcome[self.step_count_key] = count
        if self.max_steps is None:
            return outcome
        truncated = outcome.get(self.truncated_key, None)
        if truncated is not None and not count.is_cuda and count.numel() == 1 and count.item() < self.max_steps:
            return outcome  # by far the most frequent case of a single environment: nothing changes
        over = count >= self.max_steps
        outcome[self.truncated_key] = over if truncated is None else truncated | over
        outcome[self._done_key] = outcome[self._done_key] | over
        return outcome

    def transform_observation_spec(self, spec: Composite) -> Composite:
        """Adds the count."""
        done = self._done_shape()
        if spec.get(self.step_count_key, None) is not None:
            raise SpecError(
                f"StepCounter writes {key_str(self.step_count_key)}, which exists already: give it another"
                " step_count_key, or use one StepCounter only"
            )
        high = _LONGEST if self.max_steps is None else self.max_steps
        spec[self.step_count_key] = Bounded(0, high, shape=done, dtype=torch.int64, device=spec.device)
        return spec

    def transform_done_spec(self, spec: Composite) -> Composite:
        """Adds ``truncated`` if episodes are truncated and it does not exist."""
        if self.max_steps is not None and spec.get(self.truncated_key, None) is None:
            spec[self.truncated_key] = flag_spec(spec[self._done_key].shape, spec.device)
        return spec

    def _done_shape(self) -> torch.Size:
        assert self._parent is not None  # specs are asked for by a parent only
        spec = self._parent.base_env.done_spec_unbatched
        if spec.get(self._done_key, None) is None:
            raise SpecError(
                f"StepCounter belongs to {key_str(self._done_key)}, which the environment does not have (done keys:"
                f" {leaf_keys(spec)}): name the flag to write with truncated_key="
            )
        return spec[self._done_key].shape
