"""A pool of EnvPool as a vector environment of Gymnasium that is reset on request."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from rl.envs.gym._library import gymnasium

__all__ = ["PoolVector"]

AutoresetMode = gymnasium.vector.AutoresetMode


class PoolVector(gymnasium.vector.VectorEnv):  # pyright: ignore[reportMissingTypeArgument]
    """A pool whose elements are reset with ``reset(options={"reset_mask": mask})``.

    EnvPool resets a finished element in the step after its last one, unless it was reset before, which is what happens
    here. A pool is seeded when it is made: a seed makes a new one.

    Args:
        make: makes the pool for a seed.
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
            _ = pool.observation_space, pool.action_space  # made at the first access
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
    """A space without false bounds: for dm_control EnvPool states the least and the largest positive number."""
    if isinstance(space, gymnasium.spaces.Dict):
        return gymnasium.spaces.Dict({name: _mended(inner) for name, inner in space.items()})
    if not isinstance(space, gymnasium.spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        return space
    limits = np.finfo(space.dtype)
    low = np.where(space.low == limits.tiny, -np.inf, space.low).astype(space.dtype)
    high = np.where(space.high == limits.max, np.inf, space.high).astype(space.dtype)
    return gymnasium.spaces.Box(low, high, dtype=space.dtype.type)


def _written(old: Any, new: Any, rows: Any) -> Any:
    """A copy of arrays ``[num_envs, ...]`` with new values at some rows; what has no rows is replaced."""
    if isinstance(new, dict):
        return {key: _written(old[key], value, rows) for key, value in new.items()}
    if np.ndim(new) == 0 or len(new) != len(rows):
        return new
    out = np.array(old)
    out[rows] = new
    return out
