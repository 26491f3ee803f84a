"""Schedules of attributes during training."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final, final

from rl.core.errors import ContractError
from rl.core.state import reading
from rl.replay._arguments import whole
from rl.replay._state import Fields

__all__ = ["LinearScheduler", "finite"]


@final
class LinearScheduler:
    """Linear schedule of an attribute, from its present value to `final_value`, where it stays.

    Args:
        obj: whose attribute it is: a sampler or a buffer.
        param_name: ``"beta"``, which Schaul et al. 2016 anneal to 1, or ``"alpha"``.
        final_value: to be reached.
        num_steps: calls of `step` until then.

    Raises:
        ContractError: if there is no such attribute, a value is no finite number, or `num_steps` is not an integer
            of at least 1.

    Example:
        >>> from rl.replay import PrioritizedSampler
        >>> sampler = PrioritizedSampler(10, alpha=0.6, beta=0.5, backend="torch")
        >>> beta = LinearScheduler(sampler, "beta", final_value=1.0, num_steps=2)
        >>> for _ in range(3):
        ...     beta.step()
        ...     print(sampler.beta)
        0.75
        1.0
        1.0
    """

    def __init__(self, obj: Any, param_name: str, final_value: float, num_steps: int) -> None:
        steps = whole(num_steps)
        if steps is None:
            raise ContractError(f"LinearScheduler: num_steps must be an integer of at least 1, got {num_steps!r}")
        if not hasattr(obj, param_name):
            raise ContractError(f"LinearScheduler: {type(obj).__name__} has no {param_name!r}")
        final = finite("LinearScheduler", "final_value", final_value)
        self.obj: Final = obj
        self.param_name: Final = param_name
        self.final_value: Final = final
        self.num_steps: Final = steps
        self._initial = finite("LinearScheduler", param_name, getattr(obj, param_name))
        self._steps = 0

    def step(self) -> None:
        """One step nearer."""
        self._steps = min(self._steps + 1, self.num_steps)
        share = self._steps / self.num_steps
        value = self.final_value if share == 1 else self._initial + share * (self.final_value - self._initial)
        setattr(self.obj, self.param_name, value)

    def state_dict(self) -> dict[str, Any]:
        """Where it began and how far it is; the value itself is part of the sampler's state."""
        return {"initial": self._initial, "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken.

        Raises:
            CheckpointError: if `state` is damaged. Nothing is changed then.
        """
        with reading("LinearScheduler"):
            fields = Fields("LinearScheduler", state, ("initial", "steps"))
            steps = fields.integer("steps")
            self._initial, self._steps = finite("LinearScheduler", "initial", fields["initial"]), steps


def finite(owner: str, name: str, value: Any) -> float:
    """A value as a float.

    Raises:
        ContractError: if it is no finite number; the message names `owner` and `name`.
    """
    try:
        number = float("nan") if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not isfinite(number):
        raise ContractError(f"{owner}: {name} must be a finite number, got {value!r}")
    return number
