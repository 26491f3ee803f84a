"""Environments of EnvPool."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from rl.core.arguments import as_integer
from rl.core.errors import ArgumentError, MissingExtraError
from rl.core.specs import TensorSpec
from rl.envs._libraries import Ids, check_id, import_library
from rl.envs.gym._make import gymnasium
from rl.envs.gym._wrapper import GymWrapper

__all__ = ["EnvPoolEnv", "MultiThreadedEnv"]


AutoresetMode = gymnasium.vector.AutoresetMode


class PoolVector(gymnasium.vector.VectorEnv):  # pyright: ignore[reportMissingTypeArgument]
    """A pool whose elements are reset with ``reset(options={"reset_mask": mask})``.

    EnvPool resets a finished element in the step after its last one, unless it was reset before, which is what happens
    here. A pool is seeded when it is created: a seed creates a new one.

    Args:
        make: Function that creates the pool for a seed.
    """

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make
        self._pool = pool = self._made(int(np.random.default_rng().integers(2**31)))
        self.num_envs = len(pool.all_env_ids)
        self.single_observation_space, self.single_action_space = _mended(pool.observation_space), pool.action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(pool.action_space, self.num_envs)
        self.metadata = {**pool.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.render_mode = pool.render_mode
        self._last: tuple[Any, dict[str, Any]] = ({}, {})

    def _made(self, seed: int) -> Any:
        with warnings.catch_warnings():  # its bounds are float64, its spaces float32
            warnings.filterwarnings("ignore", message=".*precision lowered by casting")
            pool = self._make(seed)
            _ = pool.observation_space, pool.action_space  # created at the first access
        return pool

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all elements, or those of ``options["reset_mask"]``."""
        if seed is not None:
            self._pool.close()
            self._pool = self._made(seed)
        if options is None or "reset_mask" not in options:
            self._last = self._pool.reset()
            return self._last
        observation, info = self._pool.reset(np.flatnonzero(options["reset_mask"]).astype(np.int32))
        rows = info["env_id"]
        self._last = _written(self._last[0], observation, rows), _written(self._last[1], info, rows)
        return self._last

    def reset_rows(self, rows: Any) -> tuple[Any, Any]:
        """Reset some elements; return what they alone observe, and their numbers in the same order."""
        observation, info = self._pool.reset(rows.astype(np.int32))
        return observation, info["env_id"]

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all elements."""
        space = self.single_action_space
        if isinstance(actions, np.ndarray):
            actions = actions.astype(space.dtype, copy=False)
            if isinstance(space, gymnasium.spaces.Discrete):
                actions = actions.astype(np.int32, copy=False)
        observation, reward, terminated, truncated, info = self._pool.step(actions)
        self._last = observation, info
        return observation, reward, terminated, truncated, info

    def render(self) -> Any:
        """Frames of all elements, uint8 ``[n, H, W, 3]``."""
        return self._pool.render(env_ids=self._pool.all_env_ids)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the pool."""
        del kwargs
        self._pool.close()


def _mended(space: Any) -> Any:
    """Return a space without false bounds: for dm_control EnvPool states the least and the largest positive number."""
    if isinstance(space, gymnasium.spaces.Dict):
        return gymnasium.spaces.Dict({name: _mended(inner) for name, inner in space.items()})
    if not isinstance(space, gymnasium.spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        return space
    limits = np.finfo(space.dtype)
    low = np.where(space.low == limits.tiny, -np.inf, space.low).astype(space.dtype)
    high = np.where(space.high == limits.max, np.inf, space.high).astype(space.dtype)
    return gymnasium.spaces.Box(low, high, dtype=space.dtype.type)


def _written(old: Any, new: Any, rows: Any) -> Any:
    """Return a copy of arrays ``[num_envs, ...]`` with new values at some rows; what has no rows is replaced."""
    if isinstance(new, dict):
        return {key: _written(old[key], value, rows) for key, value in new.items()}
    if np.ndim(new) == 0 or len(new) != len(rows):
        return new
    out = np.array(old)
    out[rows] = new
    return out


def _library() -> Any:
    return import_library("envpool", needed_by="EnvPoolEnv", extra="envpool", at_least="1.2.5", below="1.3")


class EnvPoolEnv(GymWrapper):
    """Several copies of an environment of EnvPool: Atari, MuJoCo, dm_control, Procgen, MiniGrid and others.

    The batch is ``[num_envs]``. Keys are those of `GymEnv`: ``observation`` (or the keys of a dict), ``reward``,
    ``done``, ``terminated``, ``truncated`` and ``action``. The terminal observation is under ``next``; finished
    elements are reset at once, and not in the step after their last one, as EnvPool does by itself.

    Args:
        env_name: Id, such as ``"Pong-v5"``.
        num_envs: Number of copies.
        num_threads: C++ threads that step them; as many as there are cores if None.
        categorical_action_encoding: Whether to use integers instead of one-hot vectors.
        device: Device of the tensors; the CPU if None.
        from_pixels: Whether to render after every step, into ``pixels`` uint8 ``[n, H, W, 3]``.
        pixels_only: Whether to write ``pixels`` instead of the observations.
        info_keys: Entries of ``info`` to write, with their specs: ``{"lives": Unbounded((), dtype=torch.int32)}``.
        pool_kwargs: Arguments of ``envpool.make_gymnasium``: ``frame_skip``, ``stack_num``, ``episodic_life``,
            ``max_episode_steps`` and others.

    Raises:
        UnknownComponentError: If there is no such id.
        MissingExtraError: If EnvPool is not installed, or has another version, or a library of the system is missing.

    Example:
        >>> env = EnvPoolEnv("CartPole-v1", num_envs=4)
        >>> env.rollout(5, break_when_any_done=False)["observation"].shape
        torch.Size([4, 5, 4])
        >>> env.close()
    """

    available_envs: ClassVar[Ids] = Ids(lambda: _library().list_all_envs())
    """Ids of all environments of EnvPool."""

    def __init__(
        self,
        env_name: str,
        num_envs: int = 1,
        *,
        num_threads: int | None = None,
        categorical_action_encoding: bool = False,
        device: torch.device | str | int | None = None,
        from_pixels: bool = False,
        pixels_only: bool = False,
        info_keys: Mapping[str, TensorSpec] | Iterable[str] | None = None,
        **pool_kwargs: Any,
    ) -> None:
        envpool = _library()
        count = as_integer(num_envs, type(self).__name__, "num_envs", 1)
        check_id("EnvPool", env_name, envpool.list_all_envs())
        if "batch_size" in pool_kwargs or "env_type" in pool_kwargs:
            raise ArgumentError(
                f"{type(self).__name__} steps all environments together: leave batch_size and env_type out. Use"
                " AsyncEnvPool for environments that do not wait for each other"
            )
        settings = {"num_threads": num_threads or 0, **pool_kwargs}
        if from_pixels:
            settings.setdefault("render_mode", "rgb_array")
        self.env_name = env_name
        try:
            vector = PoolVector(lambda seed: envpool.make_gymnasium(env_name, num_envs=count, seed=seed, **settings))
        except ImportError as error:  # of the system, such as Qt for Procgen; it names the command
            raise MissingExtraError(f"{env_name} needs a library that is not installed: {error}") from error
        super().__init__(
            vector,
            categorical_action_encoding=categorical_action_encoding,
            device=device,
            from_pixels=from_pixels,
            pixels_only=pixels_only,
            info_keys=info_keys,
        )

    def _label(self) -> str:
        return self.env_name

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(f"{self!r} cannot be copied or pickled: it has threads. Send a function that creates it")


class MultiThreadedEnv(EnvPoolEnv):
    """`EnvPoolEnv` with the arguments of TorchRL's class of this name.

    Args:
        num_workers: Number of environments.
        env_name: Id, such as ``"Pong-v5"``.
        create_env_kwargs: Arguments of ``envpool.make_gymnasium``.
        kwargs: Further arguments of `EnvPoolEnv`.

    Example:
        >>> MultiThreadedEnv(2, "Pendulum-v1").batch_size
        torch.Size([2])
    """

    def __init__(
        self, num_workers: int, env_name: str, *, create_env_kwargs: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(env_name, num_workers, **{**(create_env_kwargs or {}), **kwargs})
