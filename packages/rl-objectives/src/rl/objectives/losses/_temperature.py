"""The temperature of an entropy bonus: its first value and its bounds."""

from __future__ import annotations

import math
from typing import Any

from rl.core.errors import SpecError
from rl.objectives.functional._regression import is_number

__all__ = ["log_bounds"]


def log_bounds(
    owner: str, alpha_init: Any, min_alpha: Any, max_alpha: Any, target_entropy: Any
) -> tuple[float, float] | None:
    """The bounds of the logarithm of a temperature; None if there are none.

    Args:
        owner: the loss, for messages.
        alpha_init: first temperature, above 0.
        min_alpha: smallest temperature; None for no bound.
        max_alpha: largest temperature; None for no bound.
        target_entropy: nats, or ``"auto"``.

    Raises:
        SpecError: if an argument is out of its range.

    Example:
        >>> log_bounds("SACLoss", 1.0, 1.0, None, "auto")
        (0.0, inf)
    """
    for name, value in (("alpha_init", alpha_init), ("min_alpha", min_alpha), ("max_alpha", max_alpha)):
        absent = value is None and name != "alpha_init"
        if not absent and not (is_number(value) and value is not None and value > 0):
            raise SpecError(f"{owner} got {name}={value!r}; it is a number above 0")
    if target_entropy != "auto" and not is_number(target_entropy):
        raise SpecError(f"{owner} got target_entropy={target_entropy!r}; it is 'auto' or a number of nats")
    low = -math.inf if min_alpha is None else math.log(min_alpha)
    high = math.inf if max_alpha is None else math.log(max_alpha)
    if low > high:
        raise SpecError(f"{owner} got min_alpha={min_alpha} above max_alpha={max_alpha}")
    return None if min_alpha is None and max_alpha is None else (low, high)
