"""Environments of gymnax."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import torch

from rl.core.errors import SpecError
from rl.envs._jax import Action, JaxEnv, batch_of, choice, interval
from rl.envs._libraries import Ids, check_id, import_library

__all__ = ["GymnaxEnv", "GymnaxWrapper"]


def _library() -> Any:
    return import_library("gymnax", needed_by="GymnaxEnv", extra="gymnax", at_least="1.0")


class GymnaxWrapper(JaxEnv):
    """Wrapper of an environment of gymnax, batched and compiled; see `JaxEnv` for the state in the TensorDict.

    Reads ``action``, a one-hot vector (or integers) or float32 ``[*B, ...]``. Writes ``observation`` (or the fields of
    a dict), ``reward`` (float32 ``[*B, 1]``), ``done``, ``terminated`` and ``truncated`` (bool ``[*B, 1]``). Episodes
    are truncated at the simulator's ``max_steps_in_episode``. Its automatic reset is left out.

    Args:
        env: The environment.
        params: Parameters of the simulator; the default ones if None.
        batch_size: Number of copies in each batch dimension.
        num_envs: The same as ``batch_size=[num_envs]``.
        categorical_action_encoding: Whether to use integers instead of one-hot vectors.
        device: Device of JAX, or None.

    Raises:
        SpecError: If the action is neither discrete nor a box.
        MissingExtraError: If gymnax is not installed.

    Example:
        >>> import gymnax
        >>> env = GymnaxWrapper(gymnax.make("CartPole-v1")[0], num_envs=4)
        >>> env.rollout(5, break_when_any_done=False)["observation"].shape
        torch.Size([4, 5, 4])
    """

    _extra = "gymnax"

    def __init__(
        self,
        env: Any,
        params: Any = None,
        *,
        batch_size: Iterable[int] | None = None,
        num_envs: int | None = None,
        categorical_action_encoding: bool = False,
        device: torch.device | str | int | None = None,
    ) -> None:
        _library()
        super().__init__(batch_of(batch_size, num_envs), device, None)
        self.params = params = env.default_params if params is None else params
        self._env = env

        def reset(key: Any) -> tuple[Any, Any]:
            seen, state = env.reset_env(key, params)
            return state, seen

        def step(key: Any, state: Any, action: Any) -> tuple[Any, ...]:
            seen, state, reward, terminated, _ = env.step_env(key, state, action, params)
            return state, seen, reward, terminated, env.is_truncated(state, params)

        self._set_up(reset, step, _action(env.action_space(params), categorical=categorical_action_encoding))

    @property
    def gymnax_env(self) -> Any:
        """The wrapped environment."""
        return self._env

    def __repr__(self) -> str:
        return f"{type(self).__name__}(env={self._env.name}, batch_size={self.batch_size})"


def _action(space: Any, *, categorical: bool) -> Action:
    if hasattr(space, "n"):
        return choice(int(space.n), categorical=categorical)
    if hasattr(space, "low"):
        low = np.broadcast_to(np.asarray(space.low, np.float32), space.shape).copy()
        high = np.broadcast_to(np.asarray(space.high, np.float32), space.shape).copy()
        return interval(torch.from_numpy(low), torch.from_numpy(high))
    raise SpecError(f"GymnaxWrapper knows no action space {space}: it is neither discrete nor a box")


class GymnaxEnv(GymnaxWrapper):
    """An environment of gymnax by its id; see `GymnaxWrapper` for what it reads and writes.

    Args:
        env_name: Id, such as ``"CartPole-v1"``.
        kwargs: Arguments of `GymnaxWrapper`.

    Raises:
        UnknownComponentError: If there is no such id.

    Example:
        >>> GymnaxEnv("Pendulum-v1", num_envs=2).rollout(3)["next", "reward"].shape
        torch.Size([2, 3, 1])
    """

    available_envs: ClassVar[Ids] = Ids(lambda: _library().registered_envs)
    """Ids of all environments."""

    def __init__(self, env_name: str, **kwargs: Any) -> None:
        library = _library()
        check_id("gymnax", env_name, library.registered_envs)
        env, params = library.make(env_name)
        super().__init__(env, params, **kwargs)
