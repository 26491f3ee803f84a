"""Environments of Meta-World."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from rl.core.specs import TensorSpec, Unbounded
from rl.envs._libraries import Ids, check_id, import_library
from rl.envs.gym._make import gymnasium
from rl.envs.gym._wrapper import GymWrapper

__all__ = ["MetaWorldEnv", "MetaWorldWrapper"]


class _Free(gymnasium.ObservationWrapper):  # pyright: ignore[reportMissingTypeArgument]
    """Meta-World's observations leave the bounds that it states."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        space: Any = env.observation_space
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, space.shape, space.dtype.type)

    def observation(self, observation: Any) -> Any:
        """Return the observation itself."""
        return observation


class MetaWorldWrapper(GymWrapper):
    """Wrapper of tasks of Meta-World: `GymWrapper` with the observation ``success`` (float32 ``[*B, 1]``).

    ``("next", "success")`` is 1 in the steps in which the task is solved. Observations are unbounded: those of the
    library leave the bounds of its space.

    Args:
        env: One environment, or a sequence of equal ones (``[n]``).
        info_keys: Further entries of ``info`` to write, with their specs.
        settings: Further arguments of `GymWrapper`.
    """

    def __init__(self, env: Any, *, info_keys: Mapping[str, TensorSpec] | None = None, **settings: Any) -> None:
        made: Any = [_Success(_Free(one)) for one in env] if isinstance(env, Sequence) else _Success(_Free(env))
        success = {"success": Unbounded(1, dtype=torch.float32)}
        super().__init__(made, info_keys={**success, **(info_keys or {})}, **settings)


class _Success(gymnasium.Wrapper):  # pyright: ignore[reportMissingTypeArgument]
    """``success`` as an array, and resets that use their seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset; the reset of the library ignores `seed`, which its method `seed` sets."""
        if seed is not None:
            self.unwrapped.seed(seed)  # pyright: ignore[reportAttributeAccessIssue]
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Step, and write ``success`` of ``info`` as an array."""
        *outcome, info = self.env.step(action)
        return *outcome, {**info, "success": [info["success"]]}


def _library() -> Any:
    return import_library("metaworld", needed_by="MetaWorldEnv", extra="metaworld", at_least="3.1")


def _ids() -> list[str]:
    _library()
    tasks = import_library("metaworld.env_dict", needed_by="MetaWorldEnv", extra="metaworld")
    return list(tasks.ALL_V3_ENVIRONMENTS)


class MetaWorldEnv(MetaWorldWrapper):
    """A task of Meta-World by its name, with goals that vary (MT1); see `MetaWorldWrapper`.

    Args:
        env_name: Name, such as ``"reach-v3"``.
        num_envs: Number of environments, as batch ``[num_envs]``; one without a batch if None.
        env_kwargs: Arguments of ``gymnasium.make("Meta-World/MT1", ...)``; its ``seed`` is that of the set of goals,
            and comes from torch's generator otherwise.
        settings: Further arguments of `MetaWorldWrapper`.

    Raises:
        UnknownComponentError: If there is no such task.
        MissingExtraError: If Meta-World is not installed.
    """

    available_envs: ClassVar[Ids] = Ids(_ids)
    """Names of all tasks."""

    def __init__(
        self, env_name: str, *, num_envs: int | None = None, env_kwargs: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        _library()
        check_id("Meta-World", env_name, self.available_envs)
        given = {"disable_env_checker": True, **(env_kwargs or {})}
        if settings.get("from_pixels"):
            given.setdefault("render_mode", "rgb_array")
        seeds = torch.randint(2**31, (num_envs or 1,)).tolist()  # of the goals
        made = [gymnasium.make("Meta-World/MT1", env_name=env_name, **{"seed": seed, **given}) for seed in seeds]
        super().__init__(made[0] if num_envs is None else made, **settings)
        self.env_name = env_name
