"""`as_gymnasium`: our environments as Gymnasium's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from tensordict import TensorDict

from rl.core.errors import ArgumentError, RLError, SpecError
from rl.core.interfaces import Env
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)
from rl.envs.base._leaf import as_env
from rl.envs.gym._make import gymnasium

spaces = gymnasium.spaces


def as_gymnasium(env: Env, *, info_keys: Iterable[NestedKey] = (), render_mode: str | None = None) -> Any:
    """Return an environment of ours as a `gymnasium.Env`, for other libraries.

    Observations are the value of the only observation, or a `Dict` by key; so are actions. One-hot vectors become
    `Discrete`.

    Args:
        env: An environment without a batch; closed with the returned one.
        info_keys: Observations that go into ``info`` instead.
        render_mode: Render mode, ``"rgb_array"`` for an environment with a method ``render``.

    Raises:
        ArgumentError: If the environment has a batch, or several rewards or done groups.
        SpecError: If it has an entry that no Gymnasium space holds.

    Example:
        >>> from rl.envs import PendulumEnv
        >>> env = as_gymnasium(PendulumEnv(), info_keys=["th", "thdot"])
        >>> env.observation_space.shape, env.action_space
        ((3,), Box(-2.0, 2.0, (1,), float32))
        >>> observation, info = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
    """
    return _Exported(env, [unwrap(key) for key in info_keys], render_mode)


def register_gym_env(
    name: str,
    make: Callable[..., Env],
    *,
    transform: Any = None,
    info_keys: Iterable[NestedKey] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Register an environment of ours with Gymnasium, so that ``gymnasium.make(name)`` creates it.

    Args:
        name: The id, such as ``"Mine-v0"``.
        make: A class or function that creates the environment.
        transform: Appended to it; each environment gets a clone.
        info_keys: Observations that go into ``info``.
        kwargs: Arguments of `make`.
        options: Arguments of `gymnasium.register`, such as ``max_episode_steps``.

    Example:
        >>> import gymnasium
        >>> from rl.envs import CartPoleEnv
        >>> register_gym_env("Poles-v0", CartPoleEnv, info_keys=["state"], max_episode_steps=500)
        >>> gymnasium.make("Poles-v0").action_space
        Discrete(2)
    """
    seen = list(info_keys)

    def entry_point(render_mode: str | None = None, **more: Any) -> Any:
        env: Any = as_env(make(**more))
        if transform is not None:
            env = env.append_transform(transform.clone() if hasattr(transform, "clone") else transform)
        return as_gymnasium(env, info_keys=seen, render_mode=render_mode)

    gymnasium.register(name, entry_point=entry_point, kwargs=dict(kwargs or {}), **options)


class _Exported(gymnasium.Env):  # pyright: ignore[reportMissingTypeArgument]
    """A Gymnasium environment that steps one of ours."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012  # as Gymnasium declares it

    def __init__(self, env: Env, info_keys: list[NestedKey], render_mode: str | None) -> None:
        inner: Any = as_env(env)
        owner = type(env).__name__
        if inner.batch_size:
            raise ArgumentError(f"{owner} has the batch {list(inner.batch_size)}; a Gymnasium environment has none")
        if len(inner.reward_keys) != 1 or len({as_tuple(key)[:-1] for key in inner.done_keys}) != 1:
            raise ArgumentError(
                f"{owner} has several rewards or groups of done flags; a Gymnasium environment has one each"
            )
        if render_mode is not None and not hasattr(env, "render"):
            raise ArgumentError(f"{owner} has no method render; leave render_mode={render_mode!r} out")
        unknown = [key_str(key) for key in info_keys if key not in inner.observation_keys]
        if unknown:
            raise ArgumentError(f"{owner} has no observation {', '.join(unknown)} for info_keys")
        self.env, self.render_mode = inner, render_mode
        if not hasattr(env, "render"):
            self.metadata = {**self.metadata, "render_modes": []}
        self._info_keys = info_keys
        self._seen = _Entries(inner.observation_spec, [key for key in inner.observation_keys if key not in info_keys])
        self._acts = _Entries(inner.full_action_spec, inner.action_keys)
        self.observation_space, self.action_space = self._seen.space, self._acts.space
        self._root: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        if seed is not None:
            self.env.set_seed(seed)
        self._root = self.env.reset()
        return self._seen.values(self._root), self._infos(self._root)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step with an action of `action_space`."""
        if self._root is None:
            raise RLError("step was called before reset: call reset first")
        stepped = self.env.step(self._root.update(self._acts.encode(action)))
        outcome = stepped.get("next")
        flag = {as_tuple(key)[-1]: bool(outcome.get(key)) for key in self.env.done_keys}
        self._root = self.env.step_mdp(stepped)
        reward = float(outcome.get(self.env.reward_key))
        seen, infos = self._seen.values(outcome), self._infos(outcome)
        return seen, reward, flag["terminated"], flag.get("truncated", False), infos

    def _infos(self, entries: Any) -> dict[str, Any]:
        return {".".join(as_tuple(key)): entries.get(key).numpy(force=True) for key in self._info_keys}

    def render(self) -> Any:
        """Return a frame of the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


class _Entries:
    """Entries of a spec as the value of a space."""

    def __init__(self, spec: Composite, keys: list[NestedKey]) -> None:
        if not keys:
            raise ArgumentError("a Gymnasium environment needs an observation: leave some out of info_keys")
        self._specs = {key: spec[key] for key in keys}
        self._spaces = {".".join(as_tuple(key)): spec_space(one, key) for key, one in self._specs.items()}
        self._single = keys[0] if len(keys) == 1 else None
        self.space: Any = spaces.Dict(self._spaces) if self._single is None else next(iter(self._spaces.values()))

    def values(self, entries: Any) -> Any:
        """Return the value of the space."""
        found: dict[str, Any] = {}
        for (key, spec), (name, space) in zip(self._specs.items(), self._spaces.items(), strict=True):
            value = spec.to_numpy(entries.get(key))
            found[name] = value if isinstance(space, spaces.Discrete) else np.asarray(value, space.dtype)
        return found if self._single is None else next(iter(found.values()))

    def encode(self, value: Any) -> TensorDict:
        """Return the entries for a value of the space."""
        given = [value] if self._single is not None else [value[name] for name in self._spaces]
        entries: Any = {key: spec.encode(one) for (key, spec), one in zip(self._specs.items(), given, strict=True)}
        return TensorDict(entries)


def spec_space(spec: TensorSpec, key: NestedKey) -> Any:
    """Return the Gymnasium space of a leaf spec.

    Raises:
        SpecError: If there is none.
    """
    kind = type(spec)
    if isinstance(spec, OneHot) and len(spec.shape) == 1:
        return spaces.Discrete(spec.n)
    if isinstance(spec, MultiOneHot) and len(spec.shape) == 1:
        return spaces.MultiDiscrete([int(n) for n in spec.nvec])
    if isinstance(spec, MultiCategorical):
        return spaces.MultiDiscrete(spec.nvec.numpy())
    if isinstance(spec, Binary):
        return spaces.MultiBinary(tuple(spec.shape))
    if isinstance(spec, Categorical):
        return spaces.MultiDiscrete(np.full(spec.shape, spec.n)) if spec.shape else spaces.Discrete(spec.n)
    if isinstance(spec, (Bounded, Unbounded)):
        low, high = spec.space.low.numpy(force=True), spec.space.high.numpy(force=True)
        if isinstance(spec, Unbounded) and spec.dtype.is_floating_point:
            low, high = np.full_like(low, -np.inf), np.full_like(high, np.inf)
        return spaces.Box(low, high, tuple(spec.shape), low.dtype)
    raise SpecError(f"no Gymnasium space holds {key_str(key)}, a {kind.__name__}: leave it out with ExcludeTransform")
