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
        start: value before the first step, not below `end`; a tensor has several, each of which falls.
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
    start: float | Tensor
    end: float | Tensor
    done: Tensor

    def __init__(self, owner: str, start: float | Tensor, end: float | Tensor, steps: int) -> None:
        super().__init__()
        ordered = torch.as_tensor((end >= 0) & (end <= start))
        if not bool(ordered.all()) or steps < 1:
            raise SpecError(f"{owner} needs start >= end >= 0 and at least one step, got {start}, {end} and {steps}")
        self.owner, self.steps = owner, int(steps)
        self.register_buffer("value", torch.as_tensor(start, dtype=torch.get_default_dtype()).clone())
        for name, one in (("start", start), ("end", end)):
            if isinstance(one, Tensor):
                self.register_buffer(name, one.to(self.value.dtype).expand_as(self.value).clone(), persistent=False)
            else:
                setattr(self, name, float(one))
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
