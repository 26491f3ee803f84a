"""The temperature of an entropy bonus: its first value, its bounds, and the entropy that it is learned for."""

from __future__ import annotations

import math
from typing import Any

from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.objectives.functional._regression import is_number

__all__ = ["TargetEntropy", "action_width", "log_bounds"]


class TargetEntropy:
    """Part of a loss with a temperature: the entropy that it is learned for."""

    _given_entropy: float | str
    _count: int | None = None
    """Number of action dimensions, or of discrete actions; None as long as it is unknown."""

    @property
    def target_entropy(self) -> float | str:
        """Entropy of the policy that the temperature is learned for, nats; it may be assigned.

        The automatic one is known from the spec of the action, of the loss or of the actor, or from the first batch:
        ``"auto"`` before. With masks of legal actions it is that without a mask.
        """
        if self._given_entropy != "auto" or self._count is None:
            return self._given_entropy
        return self._entropy_of(self._count)

    @target_entropy.setter
    def target_entropy(self, value: float | str) -> None:
        self._given_entropy = value

    def _entropy_of(self, count: int) -> float:
        """Minus the number of action dimensions (Haarnoja et al., 2018, appendix D)."""
        return -float(count)


def action_width(spec: Any, key: NestedKey) -> int | None:
    """The number of dimensions of an action by its spec; None if the spec does not tell them from those of a batch."""
    from rl.core.specs import Composite

    leaf = spec.get(key, None) if isinstance(spec, Composite) else spec
    shape = () if leaf is None else leaf.shape[len(spec.shape) if isinstance(spec, Composite) else 0 :]
    return shape[0] if len(shape) == 1 else None


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
