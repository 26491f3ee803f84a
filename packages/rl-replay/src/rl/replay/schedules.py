"""Values that change with the number of steps."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final, final

from rl.core.errors import ContractError
from rl.core.state import reading
from rl.replay._arguments import whole
from rl.replay._state import Fields

__all__ = ["LinearScheduler", "StepScheduler"]


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


@final
class StepScheduler:
    """Schedule that multiplies an attribute by a factor, or adds a summand to it, at every n-th call.

    Args:
        obj: Sampler or buffer whose attribute it is.
        param_name: Name of the attribute, such as ``"beta"``.
        gamma: Factor or summand.
        n_steps: Calls of `step` between two changes.
        mode: Kind of the change, ``"multiplicative"`` or ``"additive"``.
        min_value: Smallest value; None for no bound.
        max_value: Largest value; None for no bound.

    Raises:
        ContractError: if there is no such attribute, a value is no finite number, `mode` is another, or `n_steps` is
            not an integer of at least 1.

    Example:
        >>> from rl.replay import PrioritizedSampler
        >>> sampler = PrioritizedSampler(10, alpha=0.6, beta=0.5, backend="torch")
        >>> beta = StepScheduler(sampler, "beta", gamma=0.25, n_steps=2, mode="additive", max_value=0.9)
        >>> for _ in range(4):
        ...     beta.step()
        ...     print(sampler.beta)
        0.5
        0.75
        0.75
        0.9
    """

    def __init__(
        self,
        obj: Any,
        param_name: str,
        gamma: float = 0.9,
        n_steps: int = 1,
        mode: str = "multiplicative",
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        steps = whole(n_steps)
        if steps is None:
            raise ContractError(f"StepScheduler: n_steps must be an integer of at least 1, got {n_steps!r}")
        if mode not in ("multiplicative", "additive"):
            raise ContractError(f"StepScheduler: mode must be 'multiplicative' or 'additive', got {mode!r}")
        if not hasattr(obj, param_name):
            raise ContractError(f"StepScheduler: {type(obj).__name__} has no {param_name!r}")
        finite("StepScheduler", param_name, getattr(obj, param_name))
        self.obj: Final = obj
        self.param_name: Final = param_name
        self.gamma: Final = finite("StepScheduler", "gamma", gamma)
        self.n_steps: Final = steps
        self.mode: Final = mode
        self.min_value: Final = None if min_value is None else finite("StepScheduler", "min_value", min_value)
        self.max_value: Final = None if max_value is None else finite("StepScheduler", "max_value", max_value)
        self._steps = 0

    def step(self) -> None:
        """Count a call; change the attribute at the end of an interval."""
        self._steps += 1
        before = value = float(getattr(self.obj, self.param_name))
        if self._steps % self.n_steps == 0:
            value = value + self.gamma if self.mode == "additive" else value * self.gamma
        value = value if self.min_value is None else max(value, self.min_value)
        value = value if self.max_value is None else min(value, self.max_value)
        if value != before:  # else an integer would become a float
            setattr(self.obj, self.param_name, value)

    def state_dict(self) -> dict[str, Any]:
        """Number of calls; the value itself is part of the sampler's state."""
        return {"steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken.

        Raises:
            CheckpointError: if `state` is damaged. Nothing is changed then.
        """
        with reading("StepScheduler"):
            self._steps = Fields("StepScheduler", state, ("steps",)).integer("steps")
