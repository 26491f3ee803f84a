"""Values that change with the number of steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

from rl.core.arguments import as_integer, as_number, one_of
from rl.core.errors import ArgumentError
from rl.core.state import reading
from rl.replay._state import Fields

__all__ = ["LinearScheduler", "StepScheduler"]


@final
class LinearScheduler:
    """Linear schedule of an attribute, from its present value to `final_value`, where it stays.

    Args:
        obj: Sampler or buffer whose attribute it is.
        param_name: ``"beta"``, which Schaul et al. 2016 anneal to 1, or ``"alpha"``.
        final_value: Value that is reached.
        num_steps: Number of calls of `step` until then.

    Raises:
        ArgumentError: If there is no such attribute, a value is no finite number, or `num_steps` is not an integer
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
        steps = as_integer(num_steps, "LinearScheduler", "num_steps", 1)
        if not hasattr(obj, param_name):
            raise ArgumentError(f"LinearScheduler: {type(obj).__name__} has no {param_name!r}")
        final = as_number(final_value, "LinearScheduler", "final_value")
        self.obj: Final = obj
        self.param_name: Final = param_name
        self.final_value: Final = final
        self.num_steps: Final = steps
        self._initial = as_number(getattr(obj, param_name), "LinearScheduler", param_name)
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
            CheckpointError: If `state` is damaged. Nothing is changed then.
        """
        with reading("LinearScheduler"):
            fields = Fields("LinearScheduler", state, ("initial", "steps"))
            steps = fields.integer("steps")
            self._initial, self._steps = as_number(fields["initial"], "LinearScheduler", "initial"), steps


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
        ArgumentError: If there is no such attribute, a value is no finite number, `mode` is another, or `n_steps` is
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
        steps = as_integer(n_steps, "StepScheduler", "n_steps", 1)
        one_of(mode, "StepScheduler", "mode", ("multiplicative", "additive"))
        if not hasattr(obj, param_name):
            raise ArgumentError(f"StepScheduler: {type(obj).__name__} has no {param_name!r}")
        as_number(getattr(obj, param_name), "StepScheduler", param_name)
        self.obj: Final = obj
        self.param_name: Final = param_name
        self.gamma: Final = as_number(gamma, "StepScheduler", "gamma")
        self.n_steps: Final = steps
        self.mode: Final = mode
        self.min_value: Final = None if min_value is None else as_number(min_value, "StepScheduler", "min_value")
        self.max_value: Final = None if max_value is None else as_number(max_value, "StepScheduler", "max_value")
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
        """Return the number of calls; the value itself is part of the sampler's state."""
        return {"steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken.

        Raises:
            CheckpointError: If `state` is damaged. Nothing is changed then.
        """
        with reading("StepScheduler"):
            self._steps = Fields("StepScheduler", state, ("steps",)).integer("steps")
