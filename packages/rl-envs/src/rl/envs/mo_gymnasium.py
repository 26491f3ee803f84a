"""Environments of MO-Gymnasium, with several objectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from rl.core.errors import ArgumentError
from rl.core.specs import Unbounded
from rl.envs._libraries import Ids, check_id, import_library
from rl.envs.gym._make import gymnasium
from rl.envs.gym._wrapper import GymWrapper

__all__ = ["MOGymEnv", "MOGymWrapper"]


def _library() -> Any:
    return import_library(
        "mo_gymnasium", needed_by="MOGymEnv", extra="mo-gymnasium", distribution="mo-gymnasium", at_least="1.3"
    )


class MOGymWrapper(GymWrapper):
    """Wrapper of environments of MO-Gymnasium: `GymWrapper` with ``reward`` float32 ``[*B, objectives]``.

    See `LineariseRewards` for the weighted sum, which other components need.

    Args:
        env: One environment, or a sequence of equal ones (``[n]``).
        settings: Further arguments of `GymWrapper`.

    Raises:
        ArgumentError: If `env` has no vector of rewards.
        MissingExtraError: If MO-Gymnasium is not installed.

    Example:
        >>> import mo_gymnasium  # doctest: +SKIP
        >>> env = MOGymWrapper(mo_gymnasium.make("mo-mountaincar-v0"))  # doctest: +SKIP
        >>> env.rollout(3)["next", "reward"].shape  # doctest: +SKIP
        torch.Size([3, 3])
    """

    def __init__(self, env: Any, **settings: Any) -> None:
        _library()
        super().__init__(env, **settings)
        first: Any = env[0] if isinstance(env, Sequence) else env
        space = getattr(first.unwrapped, "reward_space", None)
        if isinstance(env, gymnasium.vector.VectorEnv) or space is None:
            raise ArgumentError(
                f"{type(self).__name__} wraps single environments of MO-Gymnasium, which have a reward_space, or a list"
                f" of them; got {env!r:.100}"
            )
        self.reward_spec = Unbounded(space.shape)
        for simulator in self._sim.simulators:
            simulator.idle = np.zeros(space.shape, np.float32)


def _ids() -> list[str]:
    _library()
    return [name for name in gymnasium.registry if name.startswith("mo-")]


class MOGymEnv(MOGymWrapper):
    """An environment of MO-Gymnasium by its id; see `MOGymWrapper`.

    Args:
        env_name: Id, such as ``"mo-mountaincar-v0"``.
        num_envs: Number of environments, as batch ``[num_envs]``; one without a batch if None.
        env_kwargs: Arguments of ``mo_gymnasium.make``.
        settings: Further arguments of `GymWrapper`.

    Raises:
        UnknownComponentError: If there is no such id.
    """

    available_envs: ClassVar[Ids] = Ids(_ids)
    """Ids of all environments."""

    def __init__(
        self, env_name: str, *, num_envs: int | None = None, env_kwargs: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        library = _library()
        check_id("MO-Gymnasium", env_name, self.available_envs)
        given = dict(env_kwargs or {})
        if settings.get("from_pixels"):
            given.setdefault("render_mode", "rgb_array")
        made = [library.make(env_name, **given) for _ in range(num_envs or 1)]
        super().__init__(made[0] if num_envs is None else made, **settings)
        self.env_name = env_name

    def _label(self) -> str:
        return getattr(self, "env_name", super()._label())
