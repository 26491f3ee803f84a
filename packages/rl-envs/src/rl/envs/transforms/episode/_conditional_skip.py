"""`ConditionalSkip`: elements that are not stepped while a condition holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Reset, Step, Transform
from rl.envs.transforms._entries import check_root_done, element_mask, merged, step_mask
from rl.envs.transforms._specs import Specs

__all__ = ["ConditionalSkip"]


class ConditionalSkip(Transform):
    """Does not step elements for which a condition holds: they keep their root entries, with reward 0.

    Writes ``_step`` (bool ``[*B, 1]``) into what the environment reads. A batch of which nothing is stepped does not
    reach the environment.

    Args:
        cond: receives the root TensorDict with the action; returns a bool, or a bool tensor ``[*B]`` or ``[*B, 1]``,
            true where the step is skipped.

    Raises:
        SpecError: if the condition has another shape, or the environment no ``done`` at the root.

    Order: transforms before it do not see skipped steps, those after it do.

    Example:
        >>> from rl.envs import PendulumEnv, StepCounter, TransformedEnv
        >>> turns = iter([False, True, True, False])
        >>> env = TransformedEnv(PendulumEnv(), StepCounter()).append_transform(ConditionalSkip(lambda td: next(turns)))
        >>> env.rollout(4)["next", "step_count"].flatten().tolist()
        [1, 1, 1, 2]
    """

    def __init__(self, cond: Callable[[TensorDictBase], Tensor | bool]) -> None:
        super().__init__()
        self.cond = cond

    def _wrap(self, reset: Reset, step: Step) -> tuple[Reset, Step]:
        def maybe(root: Any) -> Any:
            done = root["done"]
            skipped = element_mask(self.cond(root), done, self)
            if not skipped.any():
                return step(root)
            held = self._held(root)
            moving = step_mask(root, done) & ~skipped
            if not moving.any():
                return held
            following = root.copy()
            following["_step"] = moving
            return merged(moving, step(following), held)

        return reset, maybe

    def _held(self, root: Any) -> Any:
        """The outcome of a step that changes nothing."""
        held = TensorDict({key: root[key] for key in self._kept}, root.batch_size)
        for key, zero in self._zeros.items():
            held[key] = zero.clone()
        return held

    def transform_specs(self, specs: Specs) -> None:
        """Nothing changes."""
        check_root_done(specs, self)
        self._kept = [*leaf_keys(specs.observation), *leaf_keys(specs.done)]
        self._zeros = {
            key: specs.reward[key].expand(*specs.batch_size, *specs.reward[key].shape).zero()
            for key in leaf_keys(specs.reward)
        }

    def __repr__(self) -> str:
        return f"ConditionalSkip({getattr(self.cond, '__name__', type(self.cond).__name__)})"
