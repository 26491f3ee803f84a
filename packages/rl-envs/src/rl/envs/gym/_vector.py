"""Stepping of Gymnasium vector environments in every autoreset mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
from torch import Tensor

from rl.core.errors import ArgumentError, RLError, SpecError
from rl.core.interfaces import Leaves
from rl.envs.base._checks import warn_not_restorable
from rl.envs.base._leaf import can_write_rows, write_rows
from rl.envs.gym._leaves import nest
from rl.envs.gym._make import gymnasium
from rl.envs.gym._stepping import Codec

AutoresetMode = gymnasium.vector.AutoresetMode
CartPoleVectorEnv = import_module("gymnasium.envs.classic_control.cartpole").CartPoleVectorEnv


def autoreset_mode(env: Any) -> Any:
    """Return the autoreset mode of a vector environment.

    One that resets at the next step is reset on request instead, since the step of a reset is no transition: a
    `SyncVectorEnv`, an `AsyncVectorEnv`, and the vector classes of CartPole and of Atari games.

    Raises:
        ArgumentError: If the mode is missing or unknown, or is the next step and cannot be switched.
    """
    said = env.metadata.get("autoreset_mode")
    owner = type(env.unwrapped).__name__
    try:
        mode = AutoresetMode(said.value if hasattr(said, "value") else said)
    except ValueError:
        known = ", ".join(f"AutoresetMode.{mode.name}" for mode in AutoresetMode)
        raise ArgumentError(
            f"{owner}.metadata['autoreset_mode'] is {said!r}, so it is unknown what its observations at the end of an"
            " episode"
            f" are; it must be one of {known}"
        ) from None
    if mode is not AutoresetMode.NEXT_STEP:
        return mode
    if type(env) is gymnasium.vector.SyncVectorEnv:
        env.autoreset_mode = AutoresetMode.DISABLED
        env.metadata["autoreset_mode"] = AutoresetMode.DISABLED
        return AutoresetMode.DISABLED
    if type(env) in _PARTIAL_RESETS or _resets_by_mask(env):
        return AutoresetMode.DISABLED
    raise ArgumentError(
        f"{owner} resets a finished element in the step *after* its last one (AutoresetMode.NEXT_STEP), which is no"
        " transition, and offers no partial reset. Create it with"
        " autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP or .DISABLED if it takes that argument, or use"
        " GymEnv(id, num_envs=n), which steps n environments itself"
    )


def _resets_by_mask(env: Any) -> bool:
    """Whether a class that resets at the next step forgets that after ``reset(options={"reset_mask": mask})``."""
    if type(env) is gymnasium.vector.AsyncVectorEnv:
        return bool(env.shared_memory)  # without it, the process of an element would reset it once more
    return f"{type(env).__module__}.{type(env).__name__}" == "ale_py.vector_env.AtariVectorEnv"


def _reset_cart_poles(env: Any, mask: Any) -> Any:
    """Reset elements that ended in the step before, as `CartPoleVectorEnv.step` does."""
    env.state[:, mask] = env.np_random.uniform(low=env.low, high=env.high, size=(4, int(mask.sum())))
    env.steps[mask] = 0
    env.prev_done[:] = False
    return env.state.T.astype(np.float32)


_PARTIAL_RESETS: dict[type, Callable[[Any, Any], Any]] = {
    CartPoleVectorEnv: _reset_cart_poles,
}
"""Partial resets of vector classes that reset at the next step: of the environment and a mask, to observations."""


class VectorLeaves:
    """A vector environment that resets in the same step, or on request.

    Args:
        env: The vector environment.
        codec: Conversion between its values and tensors.
        pixels: Whether a rendered frame is written under ``pixels``.
    """

    def __init__(self, env: Any, codec: Codec, *, pixels: bool = False) -> None:
        self.env, self.codec, self.pixels = env, codec, pixels
        self.mode = autoreset_mode(env)
        if self.mode is AutoresetMode.SAME_STEP and (pixels or codec.infos):
            raise ArgumentError(
                f"{type(env.unwrapped).__name__} resets in the same step, so that the last frame and info of an episode"
                " are lost: create it with AutoresetMode.DISABLED, or leave from_pixels and info_keys out"
            )
        self._infos: list[Any] = []
        self._maskable = self.mode is AutoresetMode.DISABLED or isinstance(
            env.unwrapped, gymnasium.vector.SyncVectorEnv | gymnasium.vector.AsyncVectorEnv
        )
        self._seed: int | None = None
        self._options: dict[str, Any] | None = None
        self._rows: list[Any] = []
        self._restarted = np.zeros(env.num_envs, dtype=np.bool_)
        self._over = np.zeros(env.num_envs, dtype=np.bool_)
        self._paths = [place.path for place in codec.actions]

    def use(self, codec: Codec) -> None:
        """Convert with `codec` from now on."""
        self.codec = codec

    def set_options(self, options: dict[str, Any] | None) -> None:
        """Pass `options` to resets from now on; None for none."""
        self._options = options

    def seed(self, seed: int) -> None:
        """Seed the next full reset: `seed`, `seed` + 1, ..."""
        self._seed = seed

    def _encode(self, observations: Any) -> list[Any]:
        return [place.encode(self.codec.part(observations, place)) for place in self.codec.observations]

    def _leaves(self, rows: list[Any]) -> Leaves:
        places = self.codec.observations
        return {place.key: self.codec.tensor(row) for place, row in zip(places, rows, strict=True)}

    def reset(self, mask: Tensor | None) -> Leaves:
        """Start new episodes, in all or where the mask is true; the other rows hold what they hold."""
        if mask is None or not self._rows:
            observations, info = self.env.reset(seed=self._seed, options=self._options)
            self._seed = None
            self._rows = self._encode(observations)
            self._keep_infos(info)
            self._restarted[:] = self._over[:] = False
        else:
            wanted = mask.flatten().cpu().numpy()
            todo = wanted & ~self._restarted
            self._restarted &= ~wanted
            self._over &= ~wanted
            if todo.any():
                self._reset_some(todo)
        kept = self.mode is AutoresetMode.SAME_STEP
        leaves = self._leaves([row.copy() for row in self._rows] if kept else self._rows)
        for name in ("done", "terminated", "truncated"):
            leaves[name] = self.codec.column([False] * self.env.num_envs, np.bool_)
        return self._add_more(leaves)

    def _keep_infos(self, info: Mapping[str, Any], rows: Any = None) -> None:
        """Keep the chosen entries of `info`, by element; of the rows in a mask alone if there is one."""
        if not self.codec.infos:
            return
        every = np.ones(self.env.num_envs, np.bool_)
        names = [name for name in self.codec.infos if name in info]
        found = [
            {name: info[name][row] for name in names if info.get(f"_{name}", every)[row]}
            for row in range(self.env.num_envs)
        ]
        self._infos = [new if rows is None or rows[row] else self._infos[row] for row, new in enumerate(found)]

    def _add_more(self, leaves: Leaves) -> Leaves:
        if self.codec.infos:
            leaves.update(self.codec.info_leaves(self._infos))
        if self.pixels:
            leaves["pixels"] = self.codec.tensor(np.stack(self.env.render()))
        return leaves

    def reset_rows(self, current: Mapping[Any, Tensor], mask: Tensor) -> Leaves | None:
        """Return `current` with new episodes in the mask; None unless all entries are observations on the CPU."""
        codec = self.codec
        keys = [place.key for place in codec.observations]
        tensors = all(place.spec.dtype is not None for place in codec.observations)
        if self.mode is not AutoresetMode.DISABLED or self.pixels or codec.infos or codec.device or not tensors:
            return None
        if not can_write_rows(current, keys):
            return None
        wanted = mask.flatten().numpy()
        chosen = np.flatnonzero(wanted)
        self._over &= ~wanted
        some = getattr(self.env, "reset_rows", None)  # of a pool
        fresh: list[Any] = [None] * len(keys)
        if some is not None and chosen.size:
            observations, chosen = some(chosen)
            fresh = self._encode(observations)
        elif chosen.size:
            fresh = [row[chosen] for row in self._encode(self._reset_by_mask(wanted)[0])]
        return write_rows(current, mask, chosen, dict(zip(keys, fresh, strict=True)))

    def _reset_by_mask(self, wanted: Any) -> tuple[Any, dict[str, Any]]:
        """Observations of all elements after resets of some, and ``info``."""
        if type(self.env) in _PARTIAL_RESETS:
            if self._options is not None:
                raise RLError(f"{type(self.env.unwrapped).__name__} takes options in a reset of all elements only")
            return _PARTIAL_RESETS[type(self.env)](self.env, wanted), {}
        return self.env.reset(options={**(self._options or {}), "reset_mask": wanted.copy()})

    def _reset_some(self, wanted: Any) -> None:
        if not self._maskable:
            raise SpecError(
                f"{type(self.env.unwrapped).__name__} resets finished elements itself (AutoresetMode.SAME_STEP) and"
                " cannot"
                " reset others on request; a time limit or a partial reset of your own needs AutoresetMode.DISABLED, or"
                " GymEnv(id, num_envs=n)"
            )
        observations, info = self._reset_by_mask(wanted)
        self._keep_infos(info, wanted)
        chosen = np.flatnonzero(wanted)
        rows: list[Any] = []
        for old, new in zip(self._rows, self._encode(observations), strict=True):
            row = old.copy()  # the last observations of the episodes were returned
            row[chosen] = new[chosen]
            rows.append(row)
        self._rows = rows

    def _actions(self, root: Any) -> Any:
        return nest(self._paths, [place.decode_array(root[place.key]) for place in self.codec.actions])

    def step(self, root: Any) -> Leaves:
        """Step all elements; the rows of those that ``_step`` excludes mean nothing."""
        held = root.get("_step", None)
        if held is not None and self.mode is AutoresetMode.DISABLED:
            finished = self._over & ~held.flatten().cpu().numpy()
            if finished.any():  # it cannot step them, and cannot leave them out
                self._reset_some(finished)
                self._over &= ~finished
        observations, rewards, terminated, truncated, info = self.env.step(self._actions(root))
        rows = self._encode(observations)
        self._over = np.logical_or(terminated, truncated)
        self._rows = rows
        if self.mode is AutoresetMode.SAME_STEP:
            self._restarted = self._over.copy()
            if self._over.any():
                rows = self._last_rows(rows, info)
        # A caller may write into what it is given; rows of a reset in the same step are returned once more.
        kept = self.mode is AutoresetMode.SAME_STEP and rows is self._rows
        leaves = self._leaves([row.copy() for row in rows] if kept else rows)
        leaves["reward"] = self.codec.column(rewards, np.float32)
        leaves["done"] = self.codec.column(self._over, np.bool_)
        leaves["terminated"] = self.codec.column(terminated, np.bool_)
        leaves["truncated"] = self.codec.column(truncated, np.bool_)
        self._keep_infos(info)
        return self._add_more(leaves)

    def _last_rows(self, rows: list[Any], info: Mapping[str, Any]) -> list[Any]:
        """Return the true last observations of what finished, in copies of the rows."""
        final = info.get("final_obs")
        if final is None:
            raise SpecError(
                f"{type(self.env.unwrapped).__name__} resets in the same step but info has no 'final_obs' (entries:"
                f" {sorted(info)}): the last observations of episodes are lost"
            )
        out = [row.copy() for row in rows]
        for index in np.flatnonzero(self._over):
            for row, place in zip(out, self.codec.observations, strict=True):
                value = self.codec.part(final if isinstance(final, dict) else final[index], place)
                row[index] = place.encode([value[index] if isinstance(final, dict) else value])[0]
        return out

    def state_dict(self) -> dict[str, Any]:
        """Return that there is no state to save."""
        return {"restorable": False}

    def load_state_dict(self, state: Mapping[str, Any], owner: str) -> bool:
        """Warn, and return False."""
        del state
        warn_not_restorable(owner, "a vector environment has no state to save")
        return False

    def close(self) -> None:
        """Close the vector environment."""
        self.env.close()
