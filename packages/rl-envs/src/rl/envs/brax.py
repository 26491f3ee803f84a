"""Environments of Brax."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch

from rl.envs._jax import JaxEnv, batch_of, interval
from rl.envs._libraries import Ids, check_id, import_library

__all__ = ["BraxEnv", "BraxWrapper"]


def _library() -> Any:
    return import_library("brax.envs", needed_by="BraxEnv", extra="brax", at_least="0.14")


class BraxWrapper(JaxEnv):
    """Wrapper of an environment of Brax, batched and compiled; see `JaxEnv` for the state in the TensorDict.

    Reads ``action`` (float32 ``[*B, n]`` in [-1, 1]). Writes ``observation`` (float32, or the fields of a dict),
    ``reward`` (float32 ``[*B, 1]``), ``done``, ``terminated`` and ``truncated`` (bool ``[*B, 1]``).

    Args:
        env: The environment, without the wrappers of ``brax.envs.training``.
        batch_size: Number of copies in each batch dimension.
        num_envs: The same as ``batch_size=[num_envs]``.
        max_episode_steps: Steps after which an episode is truncated; None for no limit.
        requires_grad: Whether to let gradients pass through a step, from observations and rewards to actions and
            earlier states, where gradients are enabled.
        device: Device of JAX, or None.

    Raises:
        MissingExtraError: If Brax is not installed.

    Example:
        >>> env = BraxEnv("inverted_pendulum", num_envs=2, backend="generalized")  # doctest: +SKIP
        >>> env.rollout(3)["observation"].shape  # doctest: +SKIP
        torch.Size([2, 3, 4])
    """

    _extra = "brax"

    def __init__(
        self,
        env: Any,
        *,
        batch_size: Iterable[int] | None = None,
        num_envs: int | None = None,
        max_episode_steps: int | None = 1000,
        requires_grad: bool = False,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__(batch_of(batch_size, num_envs), device, max_episode_steps, requires_grad=requires_grad)
        self._env = env

        def reset(key: Any) -> tuple[Any, Any]:
            state = env.reset(key)
            return state, state.obs

        def step(key: Any, state: Any, action: Any) -> tuple[Any, ...]:
            del key  # its own is in the state
            state = env.step(state, action)
            return state, state.obs, state.reward, state.done > 0, False

        ones = torch.ones(env.action_size)
        self._set_up(reset, step, interval(-ones, ones))

    @property
    def brax_env(self) -> Any:
        """The wrapped environment."""
        return self._env

    def _label(self) -> str:
        return type(self._env).__name__

    def __repr__(self) -> str:
        return f"{type(self).__name__}(env={self._label()}, batch_size={self.batch_size})"


class BraxEnv(BraxWrapper):
    """An environment of Brax by its name; see `BraxWrapper` for what it reads and writes.

    Args:
        env_name: Name, such as ``"ant"``.
        batch_size: See `BraxWrapper`, as for the following ones.
        num_envs: The same as ``batch_size=[num_envs]``.
        max_episode_steps: Steps after which an episode is truncated.
        requires_grad: Whether to let gradients pass through a step.
        device: Device of JAX, or None.
        env_kwargs: Arguments of ``brax.envs.get_environment``, such as ``backend="spring"``.

    Raises:
        UnknownComponentError: If there is no such environment.
    """

    available_envs: ClassVar[Ids] = Ids(lambda: _library()._envs)  # noqa: SLF001  # Brax has no other list
    """Names of all environments."""

    def __init__(
        self,
        env_name: str,
        *,
        batch_size: Iterable[int] | None = None,
        num_envs: int | None = None,
        max_episode_steps: int | None = 1000,
        requires_grad: bool = False,
        device: torch.device | str | int | None = None,
        **env_kwargs: Any,
    ) -> None:
        library = _library()
        check_id("Brax", env_name, library._envs)  # noqa: SLF001
        self.env_name = env_name
        super().__init__(
            library.get_environment(env_name, **env_kwargs),
            batch_size=batch_size,
            num_envs=num_envs,
            max_episode_steps=max_episode_steps,
            requires_grad=requires_grad,
            device=device,
        )

    def _label(self) -> str:
        return self.env_name
