"""`ActionDiscretizer`: a few choices for a continuous action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from rl.core.errors import RLError, SpecError
from rl.core.keys import NestedKey, key_str
from rl.core.specs import Bounded, Categorical, MultiCategorical, MultiOneHot, OneHot, TensorSpec
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["ActionDiscretizer"]


class ActionDiscretizer(Transform):
    """Gives the caller a choice among intervals in place of each element of a bounded action.

    The caller's action is a `MultiCategorical` (a `Categorical` for an action without dimensions), int64 ``[*B, n]``,
    or its one-hot form. The environment gets one value of the chosen interval.

    Args:
        num_intervals: number of intervals of each element, or one number for all.
        action_key: the environment's action.
        out_action_key: the caller's action; `action_key` if None.
        sampling: which value of the interval: its ``median``, ``low`` or ``high`` end, or a ``random`` one (from
            torch's global generator).
        categorical: numbers, otherwise one-hot vectors.

    Raises:
        SpecError: if the action has no finite bounds, or the numbers do not fit its shape.
        RLError: if it is called on a batch without having an environment.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> TransformedEnv(PendulumEnv(), ActionDiscretizer(5)).action_spec
        MultiCategorical(...
    """

    def __init__(
        self,
        num_intervals: int | Sequence[int] | Tensor,
        action_key: NestedKey = "action",
        out_action_key: NestedKey | None = None,
        sampling: Literal["median", "low", "high", "random"] = "median",
        *,
        categorical: bool = True,
    ) -> None:
        super().__init__(in_keys_inv=[action_key], out_keys_inv=None if out_action_key is None else [out_action_key])
        if sampling not in {"median", "low", "high", "random"}:
            raise SpecError(f"ActionDiscretizer: sampling is median, low, high or random, got {sampling!r}")
        self.num_intervals = torch.as_tensor(num_intervals, dtype=torch.int64)
        if bool((self.num_intervals < 1).any()):
            raise SpecError(f"ActionDiscretizer: num_intervals must be positive, got {num_intervals}")
        self.sampling, self.categorical = sampling, categorical
        self._low: Tensor | None = None

    def _inverse(self, value: Tensor) -> Tensor:
        if self._low is None:
            raise RLError("ActionDiscretizer has no bounds: append it to an environment, which has them")
        if not self.categorical:
            parts = value.split([int(n) for n in self._counts.reshape(-1)], -1) if self._counts.ndim else [value]
            indices = [part.int().argmax(-1) for part in parts]
            value = torch.stack(indices, -1) if self._counts.ndim else indices[0]
        if self.sampling == "random":
            part: Tensor | float = torch.rand(value.shape, device=value.device)
        else:
            part = {"low": 0.0, "median": 0.5, "high": 1.0}[self.sampling]
        low, width = self._low.to(value.device), self._width.to(value.device)
        return low + width * (value + part).to(low.dtype)

    def transform_specs(self, specs: Specs) -> None:
        """Replace the action by the choice."""
        key = self.in_keys_inv[0]
        found = specs.read(key, self)[0]
        spec = found[key]
        if not isinstance(spec, Bounded) or not (spec.space.low.isfinite() & spec.space.high.isfinite()).all():
            raise SpecError(f"ActionDiscretizer: {key_str(key)} has no finite bounds; clip it with ClipTransform")
        if self.num_intervals.ndim and self.num_intervals.shape != spec.shape:
            raise SpecError(
                f"ActionDiscretizer: {key_str(key)} is {list(spec.shape)}, num_intervals"
                f" {list(self.num_intervals.shape)}"
            )
        if len(spec.shape) > 1:
            raise SpecError(f"ActionDiscretizer: {key_str(key)} is {list(spec.shape)}; flatten it with FlattenAction")
        self._counts = self.num_intervals.expand(spec.shape)
        self._low = spec.space.low
        self._width = (spec.space.high - spec.space.low) / self._counts.to(spec.space.low)
        del found[key]
        found[self.out_keys_inv[0]] = self._choice(specs)

    def _choice(self, specs: Specs) -> TensorSpec:
        if not self._counts.ndim:
            n = int(self._counts)
            return Categorical(n, device=specs.device) if self.categorical else OneHot(n, device=specs.device)
        counts = [int(n) for n in self._counts]
        return (MultiCategorical if self.categorical else MultiOneHot)(counts, device=specs.device)
