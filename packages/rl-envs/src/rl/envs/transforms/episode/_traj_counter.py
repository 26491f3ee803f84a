"""`TrajCounter`: numbers the episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, unwrap
from rl.core.specs import Bounded
from rl.envs.transforms._base import Transform
from rl.envs.transforms._checks import from_root
from rl.envs.transforms._entries import check_root_done
from rl.envs.transforms._specs import Specs

__all__ = ["TrajCounter"]

_LARGEST = torch.iinfo(torch.int64).max


class TrajCounter(Transform):
    """Writes the number of each episode, from 0 on, in the order in which they begin.

    Writes ``traj_count``, int64 ``[*B, 1]``, at the root and under ``next``. No two episodes of the environment have
    the same number; copies of the environment in other processes count on their own.

    Args:
        out_key: where the number goes.
        repeats: begin from 0 again after this many episodes; never if None.

    Raises:
        SpecError: if `repeats` is below 1.

    Example:
        >>> from rl.envs import PendulumEnv, StepCounter, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(), StepCounter(2)).append_transform(TrajCounter())
        >>> env.rollout(5, break_when_any_done=False)["traj_count"].flatten().tolist()
        [0, 0, 1, 1, 2]
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, out_key: NestedKey = "traj_count", *, repeats: int | None = None) -> None:
        super().__init__(out_keys=[out_key])
        if repeats is not None and repeats < 1:
            raise SpecError(f"TrajCounter: repeats must be at least 1, got {repeats}")
        self.out_key, self.repeats = unwrap(out_key), repeats
        self._begun = 0

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        begins = torch.ones_like(root["done"]) if mask is None else mask
        number = self._begun + begins.flatten().cumsum(0).reshape(begins.shape) - 1
        self._begun += int(begins.sum())
        if self.repeats is not None:
            self._begun %= self.repeats
            number = number % self.repeats
        root[self.out_key] = torch.where(begins, number, 0)
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        outcome[self.out_key] = from_root(root, self.out_key, self).clone()
        return outcome

    def transform_specs(self, specs: Specs) -> None:
        """Add the number to the observation."""
        check_root_done(specs, self)
        high = _LARGEST if self.repeats is None else self.repeats - 1
        shape = specs.done["done"].shape
        spec = Bounded(0, high, shape=shape, dtype=torch.int64, device=specs.device)
        specs.add("observation", self.out_key, spec, self)

    def state_dict(self) -> dict[str, Any]:
        """Return how many episodes have begun."""
        return {"begun": self._begun}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._begun = int(state.get("begun", 0))
