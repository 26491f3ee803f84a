"""`InitTracker`: marks the first step of each trajectory."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from rl.core.keys import NestedKey, unwrap
from rl.envs.base._specs import flag_spec
from rl.envs.transforms._base import Transform
from rl.envs.transforms._levels import level_keys
from rl.envs.transforms._specs import Specs

__all__ = ["InitTracker"]


class InitTracker(Transform):
    """Writes whether a step is the first after a reset. Recurrent modules start from zero there.

    Writes ``is_init``, bool, in the shape of ``done``, at the root and (false) under ``next``. Where the environment
    has no ``done`` at the root, each group with a ``done`` gets its own ``is_init``.

    Args:
        init_key: where the mark goes, with the name alone for every done group, or as a tuple with the path of one.

    Raises:
        SpecError: if there is no ``done`` next to it.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> TransformedEnv(PendulumEnv(), InitTracker()).rollout(3)["is_init"].flatten()
        tensor([ True, False, False])
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, init_key: NestedKey = "is_init") -> None:
        super().__init__()
        self.init_key = unwrap(init_key)
        self.out_keys = [self.init_key]

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        for key, done in self._marks:
            root[key] = torch.ones_like(root[done])
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        del root
        for key, done in self._marks:
            outcome[key] = torch.zeros_like(outcome[done])
        return outcome

    def transform_specs(self, specs: Specs) -> None:
        """Add the marks to the observation."""
        self._marks = level_keys(specs, self.init_key, self)
        self.out_keys = [key for key, _ in self._marks]
        for key, done in self._marks:
            specs.add("observation", key, flag_spec(specs.done[done].shape, specs.device), self)
