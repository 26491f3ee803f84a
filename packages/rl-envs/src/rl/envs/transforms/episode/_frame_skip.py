"""`FrameSkipTransform`: actions that are repeated."""

from __future__ import annotations

from typing import Any, ClassVar

from rl.core.errors import SpecError
from rl.core.mdp import where_reset
from rl.core.specs import Bounded, TensorSpec, Unbounded
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Reset, Step, Transform
from rl.envs.transforms._entries import check_root_done, following_root, merged, step_mask
from rl.envs.transforms._specs import Specs

__all__ = ["FrameSkipTransform"]


class FrameSkipTransform(Transform):
    """Repeats each action and adds up the rewards; the end of an episode stops the repetition.

    Writes the entries of the last repetition and the sum of all rewards. Elements of a batch that are done are not
    stepped on (``_step``) and keep what they had.

    Args:
        frame_skip: how many times an action is taken, at least 1.

    Raises:
        SpecError: if `frame_skip` is below 1, or the environment has no ``done`` at the root.

    Order: transforms before it see every frame (`TimeMaxPool`), those after it one in `frame_skip` (`CatFrames`).

    Example:
        >>> from rl.envs import PendulumEnv, StepCounter, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(), StepCounter()).append_transform(FrameSkipTransform(4))
        >>> env.rollout(2)["next", "step_count"].flatten().tolist()
        [4, 8]
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, frame_skip: int = 1) -> None:
        super().__init__()
        if frame_skip < 1:
            raise SpecError(f"FrameSkipTransform: frame_skip must be at least 1, got {frame_skip}")
        self.frame_skip = frame_skip

    def _wrap(self, reset: Reset, step: Step) -> tuple[Reset, Step]:
        rewards, times = self._rewards, self.frame_skip - 1

        def repeat(root: Any) -> Any:
            outcome = step(root)
            held = root.get("_step", None)
            for _ in range(times):
                over = outcome["done"]
                following = following_root(root, outcome)
                if held is None and not over.any():
                    fresh = step(following)
                    for key in rewards:
                        fresh[key] = fresh[key] + outcome[key]
                    outcome = fresh
                    continue
                moving = step_mask(root, over) & ~over
                if not moving.any():
                    break
                following["_step"] = moving
                fresh = step(following)
                for key in rewards:
                    fresh[key] = where_reset(moving, fresh[key] + outcome[key], outcome[key])
                outcome = merged(moving, fresh, outcome)
            return outcome

        return reset, repeat

    def transform_specs(self, specs: Specs) -> None:
        """Nothing changes but bounds of rewards, which become those of sums."""
        check_root_done(specs, self)
        self._rewards = leaf_keys(specs.reward)
        for key in self._rewards:
            specs.reward[key] = _sum_spec(specs.reward[key], self.frame_skip)

    def __repr__(self) -> str:
        return f"FrameSkipTransform(frame_skip={self.frame_skip})"


def _sum_spec(spec: TensorSpec, count: int) -> TensorSpec:
    """The spec of a sum of up to `count` values."""
    if not isinstance(spec, Bounded):
        return spec
    if not spec.dtype.is_floating_point:
        return Unbounded(spec.shape, dtype=spec.dtype, device=spec.device)
    low, high = spec.space.low, spec.space.high
    return Bounded(low.minimum(count * low), high.maximum(count * high), dtype=spec.dtype, device=spec.device)
