"""`GymEnv` and `GymWrapper`: Gymnasium's environments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from rl.core.arguments import as_integer, constructor_setting, foreign_arguments, one_of
from rl.core.errors import ArgumentError
from rl.core.specs import Bounded, TensorSpec, Unbounded
from rl.envs._libraries import Ids
from rl.envs.gym._make import gymnasium, make, make_async, make_vector
from rl.envs.gym._simulator_env import SimulatorEnv
from rl.envs.gym._spaces import places
from rl.envs.gym._stepping import Codec, GymLeaves, Outcome, Simulator
from rl.envs.gym._vector import VectorLeaves


class SkippingEnv(gymnasium.Wrapper):  # pyright: ignore[reportMissingTypeArgument]
    """Gymnasium wrapper that repeats each action and adds up the rewards.

    Args:
        env: The environment.
        times: Number of times that an action is taken; the end of an episode stops it.
    """

    def __init__(self, env: Any, times: int) -> None:
        super().__init__(env)
        self.times = times

    def step(self, action: Any) -> Outcome:
        """Take the action several times."""
        total: Any = 0.0
        for _ in range(self.times):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total = total + reward  # a number, or an array of several rewards
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info  # pyright: ignore[reportPossiblyUnboundVariable]


@foreign_arguments()
class GymWrapper(SimulatorEnv):
    """Wrapper of Gymnasium environments.

    Writes ``observation`` (or the keys of a `Dict` space; a `Tuple` lies under ``observation``, by index), ``reward``
    float32 ``[*B, 1]``, and ``done``, ``terminated``, ``truncated`` bool ``[*B, 1]``; reads ``action`` (those of a
    `Dict` under ``action``). A `Discrete` space is a one-hot vector, int64, unless `categorical_action_encoding`.
    The terminal observation is under ``next``, and the first one of the next episode at the following root, in every
    autoreset mode.

    Args:
        env: One environment (no batch), a sequence of equal ones (``[n]``, stepped one after the other), or a
            `gymnasium.vector.VectorEnv` (``[n]``) that resets in the same step or on request. A plain
            `SyncVectorEnv` or `AsyncVectorEnv` and the vector classes of CartPole and Atari games, which reset at the
            next step, are reset on request.
        categorical_action_encoding: Whether to use integers instead of one-hot vectors, in actions and observations.
        device: Device of the tensors; the CPU if None.
        frame_skip: Number of times each action is repeated; rewards are added up, and the end of an episode stops it.
            Not for vector environments.
        from_pixels: Whether to render after every step, into ``pixels`` uint8 ``[*B, H, W, 3]``.
        pixels_only: Whether to write ``pixels`` instead of the observations.
        info_keys: Entries of ``info`` to write, zero where a simulator does not report one. The specs of names are
            found by a reset and a step of the first environment; a mapping gives them, and must for a vector
            environment.

    Raises:
        ArgumentError: If `env` is another, or a vector environment that resets at the next step.
        SpecError: If a space has no spec.

    Example:
        >>> import gymnasium
        >>> env = GymWrapper(gymnasium.make("CartPole-v1"))
        >>> env.rollout(5)["observation"].shape[-1]
        4
    """

    _rename = "rename it with a gymnasium.ObservationWrapper"

    frame_skip: int = constructor_setting("_frame_skip")
    """Number of times each action is repeated."""

    def __init__(
        self,
        env: Any,
        *,
        categorical_action_encoding: bool = False,
        device: torch.device | str | int | None = None,
        frame_skip: int | None = None,
        from_pixels: bool = False,
        pixels_only: bool = False,
        info_keys: Iterable[str] | Mapping[str, TensorSpec] | None = None,
    ) -> None:
        skip = 1 if frame_skip is None else as_integer(frame_skip, type(self).__name__, "frame_skip", 1)
        vector = isinstance(env, gymnasium.vector.VectorEnv)
        several = not vector and isinstance(env, Sequence)
        members: Any = env if several else [env]
        if not members:
            raise ArgumentError(f"{type(self).__name__} needs at least one environment, got an empty list")
        for one in members:
            if not vector and not hasattr(one, "observation_space"):
                raise ArgumentError(
                    f"{type(self).__name__} wraps a Gymnasium environment, got {one!r:.100}: create it with"
                    " gymnasium.make(id), or use GymEnv(id)"
                )
        if vector and (skip != 1 or (info_keys and not isinstance(info_keys, Mapping))):
            raise ArgumentError(
                f"{type(self).__name__}: a vector environment takes no frame_skip, and the specs of info_keys as a"
                " mapping, {name: spec}; pass a list of environments, or GymEnv(id, num_envs=n)"
            )
        if pixels_only and not from_pixels:
            raise ArgumentError(f"{type(self).__name__}: pixels_only=True needs from_pixels=True")
        count = env.num_envs if vector else len(env) if several else None
        super().__init__(batch_size=() if count is None else (count,), device=device)
        self._env, self._frame_skip = env, skip
        first: Any = env[0] if several else env  # pyright: ignore[reportIndexIssue]  # a sequence then
        seen = places(
            first.single_observation_space if vector else first.observation_space,
            "observation",
            categorical=categorical_action_encoding,
            under_name=False,
        )
        acts = places(
            first.single_action_space if vector else first.action_space,
            "action",
            categorical=categorical_action_encoding,
            under_name=True,
        )
        if pixels_only:
            seen = []
        infos = {} if not info_keys else _info_specs(first, info_keys)
        owner = type(getattr(first, "unwrapped", first)).__name__
        codec = Codec(seen, acts, infos, batched=count is not None, device=self.device, owner=owner)
        sim: GymLeaves | VectorLeaves
        if vector:
            sim = VectorLeaves(env, codec, pixels=from_pixels)
        else:
            envs = list(env) if several else [env]
            _check_equal_spaces(envs, type(self).__name__)
            skipping = [one if skip == 1 else SkippingEnv(one, skip) for one in envs]
            sim = GymLeaves([Simulator(one) for one in skipping], codec, pixels=from_pixels)
        self._use(sim, _frame_spec(first, vector=vector) if from_pixels else None)

    def _set_options(self, options: Mapping[str, Any] | None) -> None:
        self._sim.set_options(None if options is None else dict(options))

    def _is_like(self, other: Any) -> bool:
        return _same_spaces(self._env, other.gym_env)

    def __getstate__(self) -> dict[str, Any]:
        if isinstance(self._env, gymnasium.vector.AsyncVectorEnv):
            raise TypeError(
                f"{self!r} cannot be copied or pickled: its environments are in processes of their own. Send a function"
                " that creates it"
            )
        return super().__getstate__()

    def render(self) -> Any:
        """Render the simulator: a frame, or a list of them."""
        if isinstance(self._env, Sequence):
            return [env.render() for env in self._env]
        return self._env.render()

    @property
    def gym_env(self) -> Any:
        """The wrapped environment, or the list of them."""
        return self._env

    def _label(self) -> str:
        first = self._env[0] if isinstance(self._env, Sequence) else self._env
        spec = getattr(first, "spec", None)
        return type(first.unwrapped).__name__ if spec is None else spec.id

    def __repr__(self) -> str:
        return f"{type(self).__name__}(env={self._label()}, batch_size={self.batch_size}, device={self.device})"


@foreign_arguments()
class GymEnv(GymWrapper):
    """A Gymnasium environment by its id; see `GymWrapper` for what it reads and writes.

    Args:
        env_name: Id, such as ``"CartPole-v1"``.
        num_envs: Number of environments, as batch ``[num_envs]``; one without a batch if None.
        categorical_action_encoding: Whether to use integers instead of one-hot vectors.
        device: Device of the tensors; the CPU if None.
        frame_skip: Number of times each action is repeated.
        from_pixels: Whether to render after every step, into ``pixels``.
        pixels_only: Whether to write ``pixels`` instead of the observations.
        info_keys: Entries of ``info`` to write.
        vectorization: Stepping of several environments: ``"in-process"`` steps `num_envs` environments one after the
            other; ``"async"`` steps each in a process of its own (`gymnasium.vector.AsyncVectorEnv`), for slow
            simulators; ``"native"`` uses the environment's own vector form, if it has one that does not reset at the
            next step.
        wrappers: Gymnasium wrappers for each environment, innermost first; each is called with an environment and
            returns one.
        gym_kwargs: Arguments of ``gymnasium.make``.

    Raises:
        UnknownComponentError: If no such id is registered.
        MissingExtraError: If a library that it needs is not installed.

    Example:
        >>> env = GymEnv("CartPole-v1", num_envs=2)
        >>> env
        GymEnv(env=CartPole-v1, batch_size=torch.Size([2]), device=None)
        >>> env.action_spec.shape
        torch.Size([2, 2])
    """

    def __init__(
        self,
        env_name: str,
        *,
        num_envs: int | None = None,
        categorical_action_encoding: bool = False,
        device: torch.device | str | int | None = None,
        frame_skip: int | None = None,
        from_pixels: bool = False,
        pixels_only: bool = False,
        info_keys: Iterable[str] | Mapping[str, TensorSpec] | None = None,
        vectorization: Literal["in-process", "native", "async"] = "in-process",
        wrappers: Sequence[Callable[[Any], Any]] = (),
        **gym_kwargs: Any,
    ) -> None:
        num_envs = None if num_envs is None else as_integer(num_envs, "GymEnv", "num_envs", 1)
        frame_skip = None if frame_skip is None else as_integer(frame_skip, "GymEnv", "frame_skip", 1)
        one_of(vectorization, "GymEnv", "vectorization", ("in-process", "native", "async"))
        if from_pixels:
            gym_kwargs.setdefault("render_mode", "rgb_array")
        one = partial(_made, env_name, frame_skip or 1, tuple(wrappers), gym_kwargs)
        if vectorization == "in-process":
            env: Any = one() if num_envs is None else [one() for _ in range(num_envs)]
        else:
            if num_envs is None:
                raise ArgumentError(f"GymEnv: vectorization={vectorization!r} needs num_envs")
            if vectorization == "native" and (wrappers or frame_skip not in (None, 1)):
                raise ArgumentError(
                    "GymEnv: wrappers and frame_skip need another vectorization, which has single environments"
                )
            if info_keys and not isinstance(info_keys, Mapping):
                info_keys = _probed(one, info_keys)
            made = make_vector(env_name, num_envs, **gym_kwargs) if vectorization == "native" else None
            env = make_async(one, num_envs) if made is None else made
        super().__init__(
            env,
            categorical_action_encoding=categorical_action_encoding,
            device=device,
            from_pixels=from_pixels,
            pixels_only=pixels_only,
            info_keys=info_keys,
        )
        self._env_name, self._frame_skip = env_name, frame_skip or 1

    env_name: str = constructor_setting("_env_name")
    """Id of the environment."""
    available_envs: ClassVar[Ids] = Ids(lambda: gymnasium.registry)
    """Ids that Gymnasium knows now, sorted; packages that are imported later add theirs."""

    def _label(self) -> str:
        return self._env_name


def _made(env_name: str, frame_skip: int, wrappers: Sequence[Callable[[Any], Any]], gym_kwargs: dict[str, Any]) -> Any:
    """One environment with its wrappers; for ``"async"`` called in its process."""
    env = make(env_name, **gym_kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return env if frame_skip == 1 else SkippingEnv(env, frame_skip)


def _probed(make_one: Callable[[], Any], info_keys: Iterable[str] | Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """Specs of entries of ``info``, from an environment of its own."""
    env = make_one()
    try:
        return _info_specs(env, info_keys)
    finally:
        env.close()


def _same_spaces(env: Any, other: Any) -> bool:
    return env.observation_space == other.observation_space and env.action_space == other.action_space


def _check_equal_spaces(envs: Sequence[Any], owner: str) -> None:
    if len({id(env) for env in envs}) < len(envs):
        raise ArgumentError(
            f"{owner}: the list holds one environment several times: create one object for each element"
        )
    for env in envs[1:]:
        if not _same_spaces(env, envs[0]):
            raise ArgumentError(f"{owner}: the environments differ: {envs[0]} and {env} do not have the same spaces")


def _get_rng_state(env: Any) -> Any:
    """Return the simulator's generator state, to be put back after a probe."""
    rng = getattr(env.unwrapped, "np_random", None)
    return rng.bit_generator.state if isinstance(rng, np.random.Generator) else None


def _set_rng_state(env: Any, state: Any) -> None:
    if state is not None:
        env.unwrapped.np_random.bit_generator.state = state


def _frame_spec(env: Any, *, vector: bool) -> TensorSpec:
    """Return the spec of a rendered frame; the environment is reset to find it."""
    if env.render_mode != "rgb_array":
        raise ArgumentError(
            f"{env} renders in mode {env.render_mode!r}, pixels need 'rgb_array': build it with render_mode='rgb_array'"
        )
    state = _get_rng_state(env)
    env.reset()
    frame = np.asarray(env.render()[0] if vector else env.render())
    _set_rng_state(env, state)
    return Bounded(0, 255, shape=frame.shape, dtype=torch.uint8)


def _info_specs(env: Any, keys: Iterable[str] | Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """Specs of entries of ``info``; the environment is reset and stepped once to find them."""
    if isinstance(keys, Mapping):
        return dict(keys)
    state = _get_rng_state(env)
    _, first = env.reset()
    *_, second = env.step(env.action_space.sample())
    _set_rng_state(env, state)
    specs: dict[str, TensorSpec] = {}
    for key in keys:
        if key not in first and key not in second:
            raise ArgumentError(
                f"info_keys has {key!r}, which {env} reports neither at a reset nor at a step (entries:"
                f" {sorted({*first, *second})}); state its spec: info_keys={{{key!r}: Unbounded(...)}}"
            )
        found = [np.asarray(info[key]) for info in (first, second) if key in info]
        kind = np.result_type(*found)  # a reset may report an integer where a step reports a fraction
        if kind.kind not in "biufc" or found[0].shape != found[-1].shape:
            raise ArgumentError(
                f"info_keys has {key!r}, which {env} reports as {first.get(key, second.get(key))!r}: not as numbers of"
                f" one shape, so that it has no spec; state one: info_keys={{{key!r}: Unbounded(...)}}"
            )
        specs[key] = Unbounded(found[0].shape, dtype=torch.from_numpy(np.empty(0, kind)).dtype)
    return specs
