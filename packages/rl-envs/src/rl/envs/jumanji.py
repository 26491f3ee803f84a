"""Environments of Jumanji."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import torch

from rl.core.errors import SpecError
from rl.envs._jax import Action, JaxEnv, batch_of, choice, choices, interval
from rl.envs._libraries import Ids, check_id, import_library

__all__ = ["JumanjiEnv", "JumanjiWrapper"]


def _library() -> Any:
    return import_library("jumanji", needed_by="JumanjiEnv", extra="jumanji", at_least="1.1")


class JumanjiWrapper(JaxEnv):
    """Wrapper of an environment of Jumanji, batched and compiled; see `JaxEnv` for the state in the TensorDict.

    Reads ``action``: a one-hot vector or integers, several of them for several choices, or float32. Writes the fields
    of the observation by name (an array is ``observation``), among them ``action_mask`` (bool) where the simulator has
    one, ``reward`` (float32 ``[*B, 1]``, or one for each agent), ``done``, ``terminated`` and ``truncated``
    (bool ``[*B, 1]``): the last time step is terminated if its discount is 0, and truncated otherwise.

    Args:
        env: The environment.
        batch_size: Number of copies in each batch dimension.
        num_envs: The same as ``batch_size=[num_envs]``.
        categorical_action_encoding: Whether to use integers instead of one-hot vectors.
        device: Device of JAX, or None.

    Raises:
        SpecError: If the action has no spec here.
        MissingExtraError: If Jumanji is not installed.

    Example:
        >>> import jumanji
        >>> env = JumanjiWrapper(jumanji.make("Snake-v1"), num_envs=2, categorical_action_encoding=True)
        >>> env.reset()["action_mask"].shape
        torch.Size([2, 4])
    """

    _extra = "jumanji"

    def __init__(
        self,
        env: Any,
        *,
        batch_size: Iterable[int] | None = None,
        num_envs: int | None = None,
        categorical_action_encoding: bool = False,
        device: torch.device | str | int | None = None,
    ) -> None:
        _library()
        super().__init__(batch_of(batch_size, num_envs), device, None)
        self._env = env

        def reset(key: Any) -> tuple[Any, Any]:
            state, time_step = env.reset(key)
            return state, time_step.observation

        def step(key: Any, state: Any, action: Any) -> tuple[Any, ...]:
            del key  # its own is in the state
            state, then = env.step(state, action)
            over, ends = then.last(), (then.discount == 0).all()
            return state, then.observation, then.reward, over & ends, over & ~ends

        self._set_up(reset, step, _action(env.action_spec, categorical=categorical_action_encoding))

    @property
    def jumanji_env(self) -> Any:
        """The wrapped environment."""
        return self._env

    def __repr__(self) -> str:
        return f"{type(self).__name__}(env={type(self._env).__name__}, batch_size={self.batch_size})"


def _action(spec: Any, *, categorical: bool) -> Action:
    counts = getattr(spec, "num_values", None)
    if counts is not None:
        numbers = np.asarray(counts)
        if numbers.ndim == 0:
            return choice(int(numbers), categorical=categorical)
        if numbers.ndim == 1:
            return choices(numbers.tolist(), categorical=categorical)
    elif hasattr(spec, "minimum"):
        low = np.broadcast_to(np.asarray(spec.minimum, np.float32), spec.shape).copy()
        high = np.broadcast_to(np.asarray(spec.maximum, np.float32), spec.shape).copy()
        return interval(torch.from_numpy(low), torch.from_numpy(high))
    raise SpecError(f"JumanjiWrapper knows no action spec {spec}")


class JumanjiEnv(JumanjiWrapper):
    """An environment of Jumanji by its id; see `JumanjiWrapper` for what it reads and writes.

    Args:
        env_name: Id, such as ``"Snake-v1"``.
        env_kwargs: Arguments of ``jumanji.make``.
        kwargs: Arguments of `JumanjiWrapper`.

    Raises:
        UnknownComponentError: If there is no such id.

    Example:
        >>> JumanjiEnv("Game2048-v1", num_envs=2).rollout(3)["board"].shape
        torch.Size([2, 3, 4, 4])
    """

    available_envs: ClassVar[Ids] = Ids(lambda: _library().registered_environments())
    """Ids of all environments."""

    def __init__(self, env_name: str, *, env_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        library = _library()
        check_id("Jumanji", env_name, library.registered_environments())
        super().__init__(library.make(env_name, **(env_kwargs or {})), **kwargs)
