"""A noise level that falls in a straight line."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl.core.errors import SpecError

__all__ = ["LinearSchedule"]


class LinearSchedule(nn.Module):
    """From `start` to `end` in `steps` steps, then `end`; saved with the module that it belongs to.

    Args:
        owner: the component that uses it, for messages.
        start: value before the first step, not below `end`.
        end: value after the last, not negative.
        steps: length, at least 1.

    Raises:
        SpecError: if these conditions do not hold.

    Example:
        >>> schedule = LinearSchedule("example", 1.0, 0.0, 4)
        >>> schedule.step(3)
        >>> schedule.value
        tensor(0.2500)
    """

    value: Tensor
    done: Tensor

    def __init__(self, owner: str, start: float, end: float, steps: int) -> None:
        super().__init__()
        if not 0 <= end <= start or steps < 1:
            raise SpecError(f"{owner} needs start >= end >= 0 and at least one step, got {start}, {end} and {steps}")
        self.owner = owner
        self.start, self.end, self.steps = float(start), float(end), int(steps)
        self.register_buffer("value", torch.tensor(self.start))
        self.register_buffer("done", torch.tensor(0, dtype=torch.int64))

    def step(self, count: int = 1) -> None:
        """Go `count` steps on.

        Raises:
            SpecError: if `count` is negative.
        """
        if count < 0:
            raise SpecError(f"{self.owner}.step got {count}, expected at least 0")
        self.done += count
        share = (self.done.double() / self.steps).clamp(max=1.0)
        self.value.copy_(self.start + (self.end - self.start) * share)
