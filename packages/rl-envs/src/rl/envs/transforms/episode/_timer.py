"""`Timer`: how long resets, steps and the policy take."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.core.specs import Unbounded
from rl.envs import _foreign
from rl.envs.transforms._base import Reset, Step, Transform
from rl.envs.transforms._entries import check_root_done
from rl.envs.transforms._specs import Specs

__all__ = ["Timer"]


@_foreign.timer
class Timer(Transform):
    """Writes durations in seconds: of the last step, of the caller between two calls (the policy), of the last reset.

    Writes ``time_step``, ``time_policy`` and ``time_reset``, float32 ``[*B, 1]``, at the root and under ``next``; 0
    where there was no such call. Transforms before it belong to the step, those after it to the caller. Work that a
    CUDA device has not finished is not waited for.

    Args:
        out_keys: where step, policy and reset go.

    Raises:
        SpecError: unless there are three keys.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> bool((TransformedEnv(PendulumEnv(), Timer()).rollout(3)["next", "time_step"] > 0).all())
        True
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, out_keys: Iterable[NestedKey] | None = None) -> None:
        super().__init__(out_keys=["time_step", "time_policy", "time_reset"] if out_keys is None else out_keys)
        if len(self.out_keys) != 3:
            raise SpecError(f"Timer: out_keys must name step, policy and reset, got {self.out_keys}")
        self._returned: float | None = None

    def _wrap(self, reset: Reset, step: Step) -> tuple[Reset, Step]:
        step_key, policy_key, reset_key = self.out_keys

        def restart(mask: Tensor | None) -> Any:
            begins = perf_counter()
            root = reset(mask)
            self._returned = now = perf_counter()
            shape, device = root["done"].shape, root["done"].device
            for key, seconds in ((step_key, 0.0), (policy_key, 0.0), (reset_key, now - begins)):
                root[key] = torch.full(shape, seconds, dtype=torch.float32, device=device)
            return root

        def timed(root: Any) -> Any:
            begins = perf_counter()
            policy = 0.0 if self._returned is None else begins - self._returned
            outcome = step(root)
            self._returned = now = perf_counter()
            shape, device = outcome["done"].shape, outcome["done"].device
            for key, seconds in ((step_key, now - begins), (policy_key, policy), (reset_key, 0.0)):
                outcome[key] = torch.full(shape, seconds, dtype=torch.float32, device=device)
            return outcome

        return restart, timed

    def transform_specs(self, specs: Specs) -> None:
        """Add the durations to the observation."""
        check_root_done(specs, self)
        for key in self.out_keys:
            specs.add("observation", key, Unbounded(specs.done["done"].shape, device=specs.device), self)
