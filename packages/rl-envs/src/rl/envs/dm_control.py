"""Environments of dm_control, and of other simulators with the interface of dm_env."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rl.core.arguments import as_integer, constructor_setting, foreign_arguments
from rl.core.errors import ArgumentError, RLError, SpecError
from rl.core.keys import NestedKey, unwrap
from rl.core.specs import Bounded, Categorical, OneHot, TensorSpec, Unbounded
from rl.envs._libraries import Ids, check_id, import_library
from rl.envs.gym._leaves import SpaceLeaf, as_exact_array, indices
from rl.envs.gym._simulator_env import SimulatorEnv
from rl.envs.gym._stepping import Codec, GymLeaves, Outcome, Simulator

__all__ = ["DMControlEnv", "DMControlWrapper"]


class _Stepper:
    """A dm_env environment whose steps return terminated and truncated.

    The discount of the last time step tells them apart: 0 is terminated, any other value truncated.

    Args:
        env: The environment.
        frame_skip: Number of times each action is repeated; rewards are added up.
        render_kwargs: Arguments of ``physics.render``.
    """

    def __init__(self, env: Any, frame_skip: int, render_kwargs: Mapping[str, Any]) -> None:
        self.env, self._skip, self._render = env, frame_skip, dict(render_kwargs)

    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; `seed` first seeds the environment's generator in place."""
        if seed is not None:
            random_state(self.env).seed(seed)
        return self.env.reset().observation, {}

    def step(self, action: Any) -> Outcome:
        """Step the environment `frame_skip` times, or to the end of the episode."""
        total = 0.0
        for _ in range(self._skip):
            kind, reward, discount, observation = self.env.step(action)
            if reward is None:  # the simulator has reset itself
                raise RLError(f"{self.env!r:.100}: the episode is over; reset the environment before the next step")
            total += reward
            if kind == 2:  # dm_env.StepType.LAST
                return observation, total, discount == 0, discount != 0, {}
        return observation, total, False, False, {}  # pyright: ignore[reportPossiblyUnboundVariable]

    def render(self) -> Any:
        """Return a frame, uint8 ``[H, W, 3]``."""
        return self.env.physics.render(**self._render)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


class DMSimulator(Simulator):
    """One dm_env environment and the state of its episode; see `_Stepper` for the arguments."""

    __slots__ = ()

    def __init__(self, env: Any, frame_skip: int, render_kwargs: Mapping[str, Any]) -> None:
        super().__init__(_Stepper(env, frame_skip, render_kwargs))

    def generator_state(self) -> dict[str, Any] | None:
        random = random_state(self.env.env, required=False)
        return None if random is None else dict(random.get_state(legacy=False))

    def set_generator_state(self, state: dict[str, Any]) -> None:
        random_state(self.env.env).set_state(state)


def random_state(env: Any, *, required: bool = True) -> Any:
    """Return the `numpy.random.RandomState` of an environment: of its task (suite), or its own (composer).

    Raises:
        RLError: If it has none and one is required.
    """
    for holder in (env, getattr(env, "task", None)):
        for name in ("random_state", "random"):
            found = getattr(holder, name, None)
            if isinstance(found, np.random.RandomState):
                return found
    if required:
        raise RLError(
            f"{env!r:.100} has no generator to seed, neither random_state nor task.random: seed it where it is created"
        )
    return None


def array_places(spec: Any, name: str, *, categorical: bool, action: bool) -> list[SpaceLeaf]:
    """Return the leaves of a spec of dm_env, or of a mapping or sequence of them.

    Args:
        spec: Spec of dm_env, ``dm_env.specs.Array``, or a mapping or sequence of them.
        name: Key of a spec that is a leaf itself.
        categorical: Whether to use integers instead of one-hot vectors for a `DiscreteArray`.
        action: Whether to put the leaves of a mapping under `name` too, not at the root (those of a sequence always
            are), and take float64 as float32, the dtype that policies write.

    Raises:
        SpecError: If a leaf has no shape and dtype, or its dtype is that of text.
    """
    if isinstance(spec, Mapping):
        found = [((part,), (name, part) if action else (part,), leaf) for part, leaf in spec.items()]
    elif isinstance(spec, Sequence):
        found = [((index,), (name, str(index)), leaf) for index, leaf in enumerate(spec)]
    else:
        found = [((), (name,), spec)]
    return [array_place(path, unwrap(key), leaf, categorical, action) for path, key, leaf in found]


def array_place(path: tuple[Any, ...], key: NestedKey, spec: Any, categorical: bool, action: bool) -> SpaceLeaf:  # noqa: FBT001  pickled so
    """Return the leaf `spec` that lies at `path` in the simulator's value and at `key` in a TensorDict."""
    kind = np.dtype(getattr(spec, "dtype", object)).kind
    if not hasattr(spec, "shape") or kind not in "biuf":
        raise SpecError(
            f"no spec is known for {key!r} of dm_env, {spec!r:.200}: it must be an array of numbers; leave it out with"
            " a wrapper of the simulator"
        )
    made_by = (array_place, path, key, spec, categorical, action)
    if hasattr(spec, "num_values"):
        return SpaceLeaf(path, key, *_choice(int(spec.num_values), spec.dtype, categorical=categorical), made_by)
    return SpaceLeaf(path, key, *_array(spec, action=action), made_by)


Conversion = tuple[
    TensorSpec,
    Callable[[Sequence[Any]], Any],
    Callable[[Tensor], list[Any]],
    Callable[[Any], Any],
    Callable[[Tensor], Any],
]


def _array(spec: Any, *, action: bool) -> Conversion:
    """Numbers of any shape; a single number becomes a vector of length 1."""
    shape, own, theirs = tuple(spec.shape) or (1,), tuple(spec.shape), np.dtype(spec.dtype)
    dtype = np.dtype(np.float32) if action and theirs == np.float64 else theirs
    torch_dtype = torch.from_numpy(np.empty(0, dtype)).dtype
    ours: TensorSpec = Unbounded(shape, dtype=torch_dtype)
    if hasattr(spec, "minimum"):
        low, high = (np.broadcast_to(bound, shape).astype(dtype) for bound in (spec.minimum, spec.maximum))
        if low.size == 0 or not (np.isinf(low) & np.isinf(high)).all():
            ours = Bounded(torch.from_numpy(low), torch.from_numpy(high), shape=shape, dtype=torch_dtype)

    def encode(values: Sequence[Any]) -> Any:
        array = as_exact_array(values, dtype)
        return array if own else array.reshape(-1, 1)

    def decode(tensor: Tensor) -> list[Any]:  # copies: a simulator may write into its action
        array = np.array(_numpy(tensor), dtype=theirs)
        return list(array if own else array.reshape(-1))

    def decode_one(tensor: Tensor) -> Any:
        return np.array(_numpy(tensor), dtype=theirs).reshape(own)

    return (
        ours,
        encode,
        decode,
        (lambda value: as_exact_array(value, dtype)) if own else lambda value: as_exact_array([value], dtype),
        decode_one,
    )


def _numpy(tensor: Tensor) -> Any:
    return tensor.numpy(force=tensor.requires_grad or not tensor.is_cpu)  # the plain call costs half


def _choice(n: int, dtype: Any, *, categorical: bool) -> Conversion:
    kind = np.dtype(dtype).type

    def index(tensor: Tensor) -> Any:
        return kind(int(tensor) if categorical else tensor.tolist().index(1))

    def encode_one(value: Any) -> Any:
        chosen = indices(value, 0, n)
        if categorical:
            return chosen
        out = np.zeros(n, dtype=np.int64)
        out[chosen] = 1
        return out

    return (
        Categorical(n) if categorical else OneHot(n, dtype=torch.int64),
        lambda values: np.stack([encode_one(value) for value in values]),
        lambda tensor: [index(row) for row in tensor],
        encode_one,
        index,
    )


@foreign_arguments()
class DMControlWrapper(SimulatorEnv):
    """Wrapper of an environment with the interface of dm_env, such as those of dm_control.

    Writes the observations of the simulator by name, in its dtype (a single number as ``[1]``), ``reward`` float32
    ``[1]``, and ``done``, ``terminated``, ``truncated`` bool ``[1]``. Reads ``action``, float32 where the simulator
    takes float64. A `DiscreteArray` is a one-hot vector, int64, unless `categorical_action_encoding`. The last time
    step is terminated if its discount is 0, and truncated otherwise, as at the time limit. The environment has no
    batch: see `SerialEnv` and `ParallelEnv`.

    Args:
        env: The environment.
        categorical_action_encoding: Whether to use integers instead of one-hot vectors, in actions and observations.
        device: Device of the tensors; the CPU if None.
        frame_skip: Number of times each action is repeated; rewards are added up, and the end of an episode stops it.
        from_pixels: Whether to render after every step, into ``pixels`` uint8 ``[H, W, 3]``.
        pixels_only: Whether to write ``pixels`` instead of the observations.
        camera_id: Camera of the frames.
        render_kwargs: Arguments of ``physics.render``, such as ``{"height": 84, "width": 84}``.

    Raises:
        ArgumentError: If `env` is no dm_env environment.
        SpecError: If an array has no spec.

    Example:
        >>> from dm_control import suite
        >>> env = DMControlWrapper(suite.load("cartpole", "balance"))
        >>> env.rollout(5)["position"].shape
        torch.Size([5, 3])
    """

    _rename = "rename it with a wrapper of the simulator"

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
        camera_id: int = 0,
        render_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        owner = type(self).__name__
        skip = 1 if frame_skip is None else as_integer(frame_skip, owner, "frame_skip", 1)
        if not callable(getattr(env, "action_spec", None)) or not callable(getattr(env, "observation_spec", None)):
            raise ArgumentError(
                f"{owner} wraps a dm_env environment, got {env!r:.100}: create it with dm_control.suite.load(domain,"
                " task), or use DMControlEnv(domain, task)"
            )
        if pixels_only and not from_pixels:
            raise ArgumentError(f"{owner}: pixels_only=True needs from_pixels=True")
        super().__init__(device=device)
        self._env, self._frame_skip = env, skip
        encoding = {"categorical": categorical_action_encoding}
        seen = array_places(env.observation_spec(), "observation", **encoding, action=False)
        acts = array_places(env.action_spec(), "action", **encoding, action=True)
        shown = [] if pixels_only else seen
        codec = Codec(
            shown, acts, {}, batched=False, device=self.device, owner=type(getattr(env, "task", env)).__name__
        )
        simulator = DMSimulator(env, skip, {"camera_id": camera_id, **(render_kwargs or {})})
        frame = None
        if from_pixels:
            frame = Bounded(0, 255, shape=np.shape(simulator.env.render()), dtype=torch.uint8)
        self._use(GymLeaves([simulator], codec, pixels=from_pixels), frame)

    def _is_like(self, other: Any) -> bool:
        one, two = self._env, other.dm_env
        return one.observation_spec() == two.observation_spec() and one.action_spec() == two.action_spec()

    @property
    def dm_env(self) -> Any:
        """The wrapped environment."""
        return self._env

    def render(self, **kwargs: Any) -> Any:
        """Render a frame, uint8 ``[H, W, 3]``; `kwargs` are for ``physics.render``."""
        return self._env.physics.render(**kwargs)

    def _label(self) -> str:
        return type(getattr(self._env, "task", self._env)).__name__

    def __repr__(self) -> str:
        return f"{type(self).__name__}(env={self._label()}, batch_size={self.batch_size}, device={self.device})"


def _suite() -> Any:
    import_library("mujoco", needed_by="DMControlEnv", extra="dm-control", below="4")
    return import_library("dm_control.suite", needed_by="DMControlEnv", extra="dm-control", at_least="1.0.50")


def _tasks(suite: Any) -> dict[str, tuple[str, str]]:
    """Domain and task by id, such as ``cheetah-run``."""
    return {f"{domain}-{task}": (domain, task) for domain, task in suite.ALL_TASKS}


@foreign_arguments()
class DMControlEnv(DMControlWrapper):
    """A task of the dm_control suite; see `DMControlWrapper` for what it reads and writes.

    Args:
        env_name: Domain, such as ``"cheetah"``; or the entire id, ``"cheetah-run"`` or ``"cheetah/run"``.
        task_name: Task, such as ``"run"``; part of `env_name` if None.
        categorical_action_encoding: See `DMControlWrapper`, as for the following ones.
        device: Device of the tensors.
        frame_skip: Number of times each action is repeated.
        from_pixels: Whether to render after every step.
        pixels_only: Whether to write ``pixels`` instead of the observations.
        camera_id: Camera of the frames.
        render_kwargs: Arguments of ``physics.render``.
        suite_kwargs: Arguments of ``dm_control.suite.load``: ``task_kwargs``, ``environment_kwargs``,
            ``visualize_reward``.

    Raises:
        UnknownComponentError: If there is no such task.
        MissingExtraError: If dm_control is not installed, or MuJoCo has version 4 or later.

    Example:
        >>> env = DMControlEnv("cartpole", "balance")
        >>> env
        DMControlEnv(env=cartpole-balance, batch_size=torch.Size([]), device=None)
        >>> env.action_spec.shape
        torch.Size([1])
    """

    available_envs: ClassVar[Ids] = Ids(lambda: _tasks(_suite()))
    """Ids of all tasks of the suite."""

    def __init__(
        self,
        env_name: str,
        task_name: str | None = None,
        *,
        categorical_action_encoding: bool = False,
        device: torch.device | str | int | None = None,
        frame_skip: int | None = None,
        from_pixels: bool = False,
        pixels_only: bool = False,
        camera_id: int = 0,
        render_kwargs: Mapping[str, Any] | None = None,
        **suite_kwargs: Any,
    ) -> None:
        suite = _suite()
        name = (env_name if task_name is None else f"{env_name}-{task_name}").replace("/", "-")
        tasks = _tasks(suite)
        check_id("dm_control", name, tasks)
        super().__init__(
            suite.load(*tasks[name], **suite_kwargs),
            categorical_action_encoding=categorical_action_encoding,
            device=device,
            frame_skip=frame_skip,
            from_pixels=from_pixels,
            pixels_only=pixels_only,
            camera_id=camera_id,
            render_kwargs=render_kwargs,
        )
        self._env_name = name

    env_name: str = constructor_setting("_env_name")
    """Domain and task, such as ``"cheetah-run"``."""

    def _label(self) -> str:
        return self._env_name
