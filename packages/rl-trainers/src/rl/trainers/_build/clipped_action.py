"""`ClippedAction`: actions without bounds, clipped to those of the environment."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import key_str, leaf_keys
from rl.core.specs import Bounded, Unbounded
from rl.envs import Transform
from rl.envs.transforms import Specs

__all__ = ["ClippedAction"]


class ClippedAction(Transform):
    """Takes actions without bounds, and clips them to the bounds of the environment's one action.

    The policy is then a normal distribution, whose log-probability is that of the action before it is clipped; a
    batch contains that action.

    Raises:
        SpecError: if the environment has several actions, or one that is no tensor of bounded floats.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(seed=0), ClippedAction())
        >>> env.action_spec.is_in(torch.tensor([9.0]))
        True
    """

    def __init__(self) -> None:
        super().__init__()
        self._low = self._high = torch.zeros(())

    def _inverse(self, value: Tensor) -> Tensor:
        if self._low.device != value.device:  # once: a copy at each step would wait for the device
            self._low, self._high = self._low.to(value.device), self._high.to(value.device)
        return value.clamp(self._low, self._high)

    def transform_specs(self, specs: Specs) -> None:
        """Remove the bounds of the action."""
        keys = leaf_keys(specs.action)
        spec: Any = specs.action[keys[0]] if len(keys) == 1 else None
        if type(spec) is not Bounded or not spec.dtype.is_floating_point:
            raise SpecError(
                f"clip_actions (--clip-actions) is for one action of bounded floats; the environment has"
                f" {', '.join(map(key_str, keys))} with {specs.action}: leave it out"
            )
        self.in_keys_inv, self.out_keys_inv = keys, keys
        self._low, self._high = spec.low, spec.high
        specs.action[keys[0]] = Unbounded(spec.shape, dtype=spec.dtype, device=spec.device)
