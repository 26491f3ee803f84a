"""`ConditionalPolicySwitch`: another policy acts while a condition holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Reset, Step, Transform
from rl.envs.transforms._entries import check_root_done, element_mask, following_root, merged
from rl.envs.transforms._specs import Specs

__all__ = ["ConditionalPolicySwitch"]


class ConditionalPolicySwitch(Transform):
    """Lets another policy act while a condition holds, for example the opponent of a game.

    After a reset and after each step, elements for which the condition holds, and which are not done, take an action of
    the other policy, until there are none. The caller receives the entries after the last of these steps, its reward
    and flags included. If the other policy ends an episode at its start, the element is reset again.

    Args:
        policy: writes the action into the root TensorDict.
        condition: receives the TensorDict after a reset or a step; returns a bool, or a bool tensor ``[*B]`` or
            ``[*B, 1]``, true where the other policy acts.

    Raises:
        SpecError: if the condition has another shape, or the environment no ``done`` at the root.

    Example:
        >>> import torch
        >>> from rl.core.testing import CountingEnv
        >>> from rl.envs import TransformedEnv
        >>> other = lambda td: td.set("action", torch.tensor(0))
        >>> odd = lambda td: td["observation"] % 2 == 1
        >>> env = TransformedEnv(CountingEnv(9), ConditionalPolicySwitch(other, odd))
        >>> env.rollout(3)["observation"].flatten().tolist()
        [0.0, 2.0, 4.0]
    """

    def __init__(
        self,
        policy: Callable[[TensorDictBase], TensorDictBase],
        condition: Callable[[TensorDictBase], Tensor | bool],
    ) -> None:
        super().__init__()
        self.policy, self.condition = policy, condition

    def _wrap(self, reset: Reset, step: Step) -> tuple[Reset, Step]:
        def play(entries: Any, root: Any, among: Tensor | None) -> Any:
            """Step with the other policy where the condition holds, from `entries`."""
            while True:
                done = entries["done"]
                moving = element_mask(self.condition(entries), done, self) & ~done
                if among is not None:
                    moving = moving & among
                if not moving.any():
                    return entries
                following = entries.copy() if root is None else following_root(root, entries)
                following = self.policy(following.exclude(*self._rewards, *self._actions))
                if not moving.all():
                    following["_step"] = moving
                entries = merged(moving, step(following), entries)

        def restart(mask: Tensor | None) -> Any:
            root = reset(mask)
            while True:
                root = play(root, None, mask)
                over = root["done"] if mask is None else root["done"] & mask
                if not over.any():
                    return root.exclude(*self._rewards)
                root, mask = merged(over, reset(over), root), over

        def both(root: Any) -> Any:
            held = root.get("_step", None)
            outcome = step(root)
            return play(outcome, root, None if held is None else held.reshape(outcome["done"].shape))

        return restart, both

    def transform_specs(self, specs: Specs) -> None:
        """Nothing changes."""
        check_root_done(specs, self)
        self._rewards, self._actions = leaf_keys(specs.reward), leaf_keys(specs.action)

    def __repr__(self) -> str:
        names = [getattr(one, "__name__", type(one).__name__) for one in (self.policy, self.condition)]
        return f"ConditionalPolicySwitch({', '.join(names)})"
