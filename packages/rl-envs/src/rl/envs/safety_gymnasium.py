"""Environments of Safety-Gymnasium, with costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from rl.core.errors import ArgumentError
from rl.core.specs import TensorSpec, Unbounded
from rl.envs._libraries import Ids, check_id, import_library
from rl.envs.gym._make import gymnasium
from rl.envs.gym._wrapper import GymWrapper

__all__ = ["SafetyGymnasiumEnv", "SafetyGymnasiumWrapper"]


class _CostInInfo(gymnasium.Wrapper):  # pyright: ignore[reportMissingTypeArgument]
    """Gymnasium's five values of a step, of Safety-Gymnasium's six; the cost is in ``info``."""

    def step(self, action: Any) -> Any:
        """Step, and put the cost into ``info``."""
        observation, reward, cost, terminated, truncated, info = self.env.step(action)  # pyright: ignore[reportAssignmentType]
        return observation, reward, terminated, truncated, {**info, "cost": [cost]}


class SafetyGymnasiumWrapper(GymWrapper):
    """Wrapper of environments of Safety-Gymnasium: `GymWrapper` with the observation ``cost`` (float32 ``[*B, 1]``).

    ``("next", "cost")`` is the cost of the step; 0 after a reset.

    Args:
        env: One environment, or a sequence of equal ones (``[n]``).
        info_keys: Further entries of ``info`` to write, with their specs.
        settings: Further arguments of `GymWrapper`.

    Raises:
        ArgumentError: If `env` is a vector environment.
    """

    def __init__(self, env: Any, *, info_keys: Mapping[str, TensorSpec] | None = None, **settings: Any) -> None:
        if hasattr(env, "num_envs"):
            raise ArgumentError(f"{type(self).__name__} wraps single environments, or a list of them; got {env!r:.100}")
        made: Any = [_CostInInfo(one) for one in env] if isinstance(env, Sequence) else _CostInInfo(env)
        cost = {"cost": Unbounded(1, dtype=torch.float32)}
        super().__init__(made, info_keys={**cost, **(info_keys or {})}, **settings)


def _library() -> Any:
    return import_library(
        "safety_gymnasium",
        needed_by="SafetyGymnasiumEnv",
        extra="safety-gymnasium",
        distribution="safety-gymnasium",
        at_least="1.0",
    )


def _ids() -> list[str]:
    return [name for name in _library().registry if name.startswith("Safety")]


class SafetyGymnasiumEnv(SafetyGymnasiumWrapper):
    """An environment of Safety-Gymnasium by its id; see `SafetyGymnasiumWrapper`.

    The library does not install on Python 3.11 and later, so that this class is tested against its documented interface
    only.

    Args:
        env_name: Id, such as ``"SafetyPointGoal1-v0"``.
        num_envs: Number of environments, as batch ``[num_envs]``; one without a batch if None.
        env_kwargs: Arguments of ``safety_gymnasium.make``.
        settings: Further arguments of `SafetyGymnasiumWrapper`.

    Raises:
        UnknownComponentError: If there is no such id.
        MissingExtraError: If Safety-Gymnasium is not installed.
    """

    available_envs: ClassVar[Ids] = Ids(_ids)
    """Ids of all environments."""

    def __init__(
        self, env_name: str, *, num_envs: int | None = None, env_kwargs: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        library = _library()
        check_id("Safety-Gymnasium", env_name, self.available_envs)
        made = [library.make(env_name, **(env_kwargs or {})) for _ in range(num_envs or 1)]
        super().__init__(made[0] if num_envs is None else made, **settings)
        self.env_name = env_name
