"""dm_env environments with the interface of Gymnasium's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl.core.errors import RLError
from rl.envs.gym._stepping import Outcome, Simulator

__all__ = ["DMSimulator"]


class _Stepper:
    """A dm_env environment whose steps return terminated and truncated.

    The discount of the last time step tells them apart: 0 is terminated, any other value truncated.

    Args:
        env: the environment.
        frame_skip: number of times each action is repeated; rewards are added up.
        render_kwargs: for ``physics.render``.
    """

    def __init__(self, env: Any, frame_skip: int, render_kwargs: Mapping[str, Any]) -> None:
        self.env, self._skip, self._render = env, frame_skip, dict(render_kwargs)

    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; `seed` first seeds the environment's generator in place."""
        if seed is not None:
            random_state(self.env).seed(seed)
        return self.env.reset().observation, {}

    def step(self, action: Any) -> Outcome:
        """Step the environment `frame_skip` times, or to the end of the episode."""
        total = 0.0
        for _ in range(self._skip):
            kind, reward, discount, observation = self.env.step(action)
            if reward is None:  # the simulator has reset itself
                raise RLError(f"{self.env!r:.100}: the episode is over; reset the environment before the next step")
            total += reward
            if kind == 2:  # dm_env.StepType.LAST
                return observation, total, discount == 0, discount != 0, {}
        return observation, total, False, False, {}  # pyright: ignore[reportPossiblyUnboundVariable]

    def render(self) -> Any:
        """A frame, uint8 ``[H, W, 3]``."""
        return self.env.physics.render(**self._render)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


class DMSimulator(Simulator):
    """One dm_env environment and the state of its episode; see `_Stepper` for the arguments."""

    __slots__ = ()

    def __init__(self, env: Any, frame_skip: int, render_kwargs: Mapping[str, Any]) -> None:
        super().__init__(_Stepper(env, frame_skip, render_kwargs))

    def generator_state(self) -> dict[str, Any] | None:
        random = random_state(self.env.env, required=False)
        return None if random is None else dict(random.get_state(legacy=False))

    def set_generator_state(self, state: dict[str, Any]) -> None:
        random_state(self.env.env).set_state(state)


def random_state(env: Any, *, required: bool = True) -> Any:
    """The `numpy.random.RandomState` of an environment: of its task (suite), or its own (composer).

    Raises:
        RLError: if it has none and one is required.
    """
    for holder in (env, getattr(env, "task", None)):
        for name in ("random_state", "random"):
            found = getattr(holder, name, None)
            if isinstance(found, np.random.RandomState):
                return found
    if required:
        raise RLError(
            f"{env!r:.100} has no generator to seed, neither random_state nor task.random: seed it where it is made"
        )
    return None
