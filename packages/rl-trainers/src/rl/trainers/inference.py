"""Policies outside of an environment: raw observations to actions, as one module, and with NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from rl.core import ExplorationType, set_exploration_type, states_of
from rl.core.errors import RLError, ShapeError
from rl.core.keys import IS_INIT, NEXT, NestedKey, as_tuple, leaf_keys
from rl.core.recurrent import State
from rl.core.specs import OneHot
from rl.envs import CatFrames, Compose, Transform, TransformedEnv, VecNorm

__all__ = ["PolicyModule", "Predictor"]


def name_of(key: NestedKey) -> str:
    """Return a key as a name: its parts joined by dots."""
    return ".".join(as_tuple(key))


class PolicyModule(nn.Module):
    """A policy with what its run does to observations and actions: selection, normalization, stacking, clipping.

    It reads observations as the environment of the run writes them before any transform, and returns actions that it
    reads. Where something is carried from step to step, recurrent states and stacked frames, that is an argument and a
    result, beside ``is_init``, true at the first step of an episode, which begins all of them again.

    Args:
        policy: The policy; it is not copied.
        env: Environment of evaluations, with the statistics of training (`TrainedRun.make_env`).

    Raises:
        RLError: If a transform of the observations carries something that cannot be an argument.

    Attributes:
        observations: Specs of the observations without a batch, by key.
        actions: Specs of the actions without a batch, by key.
        states: What is carried from step to step.

    Example:
        >>> from rl.envs import PendulumEnv
        >>> from tensordict.nn import TensorDictModule
        >>> policy = TensorDictModule(nn.Linear(3, 1), ["observation"], ["action"])
        >>> module = PolicyModule(policy, PendulumEnv(batch_size=[1]))
        >>> list(module.observations), list(module.actions), module.states
        (['observation'], ['action'], ())
    """

    def __init__(self, policy: Any, env: Any) -> None:
        super().__init__()
        self.policy = policy
        transforms, base = _chain(env)
        first = (0,) * len(env.batch_size)
        actions = base.full_action_spec[first] if first else base.full_action_spec
        wanted: set[NestedKey] = set(policy.in_keys) - {IS_INIT}
        before: list[Transform] = []
        for one in reversed(transforms):
            if wanted & set(one.out_keys):
                _check_plain(one)
                wanted = (wanted - set(one.out_keys)) | set(one.in_keys)
                before.insert(0, one)
        own = states_of(policy)
        carried = {state.name for state in own}
        written = base.observation_spec[first] if first else base.observation_spec
        self.observations = {key: written[key] for key in leaf_keys(written) if key in wanted - carried}
        self.actions = {key: actions[key] for key in leaf_keys(actions)}
        self._before, self._after = before, [one for one in reversed(transforms) if one.in_keys_inv]
        self._own = own
        for number, one in enumerate(before):
            if isinstance(one, VecNorm):  # buffers, so that they are saved with the module
                for index, key in enumerate(one.in_keys):
                    self.register_buffer(f"loc_{number}_{index}", one.loc[key])
                    self.register_buffer(f"scale_{number}_{index}", one.scale[key])
        self.states: tuple[State, ...] = (*own, *self._frames(env, first))

    def _frames(self, env: Any, first: tuple[int, ...]) -> list[State]:
        """Return the stacked frames, one state for each stack, ``[*frame]`` with `N` - 1 of them in front."""
        states: list[State] = []
        for one in self._before:
            if isinstance(one, CatFrames):
                for out in one.out_keys:
                    whole = env.observation_spec[out]
                    whole = whole[first] if first else whole
                    shape = list(whole.shape)
                    shape[one.dim] //= one.N
                    states.append(State(("frames", name_of(out)), (one.N - 1, *shape), whole.dtype))
        return states

    @property
    def input_names(self) -> list[str]:
        """Names of the arguments: observations, then ``is_init`` and states, if something is carried."""
        return [*map(name_of, self.observations), *(["is_init", *self._state_names] if self.states else [])]

    @property
    def output_names(self) -> list[str]:
        """Names of the results: actions, then the states of the next step."""
        return [*map(name_of, self.actions), *(f"next.{name}" for name in self._state_names)]

    @property
    def _state_names(self) -> list[str]:
        return [name_of(state.name) for state in self.states]

    def start(self, batch: int, device: Any = None) -> list[Tensor]:
        """Return the arguments after the observations at the first step; none if nothing is carried."""
        if not self.states:
            return []
        is_init = torch.ones(batch, 1, dtype=torch.bool, device=device)
        return [is_init, *(state.start((batch,), device) for state in self.states)]

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """Return actions, and the states of the next step.

        Args:
            arguments: Those of `input_names`, each ``[B, ...]``.
        """
        count = len(self.observations)
        entries = dict(zip(self.observations, arguments[:count], strict=True))
        is_init = arguments[count] if self.states else None
        carried = dict(zip((state.name for state in self.states), arguments[count + 1 :], strict=True))
        following: dict[NestedKey, Tensor] = {}
        for number, one in enumerate(self._before):
            self._transform(number, one, entries, is_init, carried, following)
        root = TensorDict(dict(entries), batch_size=arguments[0].shape[:1])
        for state in self._own:
            shape = (-1, *[1] * len(state.shape))
            assert is_init is not None
            held = carried[state.name]
            root.set(state.name, torch.where(is_init.reshape(shape), torch.full_like(held, state.initial), held))
        if is_init is not None:
            root.set(IS_INIT, is_init)
        out = self.policy(root)
        for state in self._own:
            following[state.name] = out.get((NEXT, *as_tuple(state.name)))
        for one in self._after:
            out = one.inv(out)
        actions = [out.get(key) for key in self.actions]
        return (*actions, *(following[state.name] for state in self.states))

    def _transform(
        self,
        number: int,
        one: Transform,
        entries: dict[NestedKey, Tensor],
        is_init: Tensor | None,
        carried: Mapping[NestedKey, Tensor],
        following: dict[NestedKey, Tensor],
    ) -> None:
        """Map entries in place by one transform."""
        for index, (key, out) in enumerate(zip(one.in_keys, one.out_keys, strict=True)):
            value = entries[key]
            if isinstance(one, VecNorm):
                loc, scale = getattr(self, f"loc_{number}_{index}"), getattr(self, f"scale_{number}_{index}")
                entries[out] = ((value - loc) / scale).to(value.dtype)
            elif isinstance(one, CatFrames):
                name = ("frames", name_of(out))
                fill = value if one.padding == "same" else torch.full_like(value, one.padding_value)
                assert is_init is not None
                begins = is_init.reshape(-1, *[1] * value.ndim)
                held = torch.where(begins, fill.unsqueeze(1), carried[name])  # [B, N - 1, *F]
                frames = torch.cat([held, value.unsqueeze(1)], 1)
                following[name] = frames[:, 1:]
                entries[out] = torch.cat(list(frames.unbind(1)), one.dim)
        if not isinstance(one, VecNorm | CatFrames):
            mapped = one(TensorDict(dict(entries), batch_size=next(iter(entries.values())).shape[:1]))
            for out in one.out_keys:
                entries[out] = mapped.get(out)


def _chain(env: Any) -> tuple[list[Any], Any]:
    """Return the transforms of an environment, the innermost first, and the environment below."""
    found: list[Any] = []
    while isinstance(env, TransformedEnv):
        chain = list(env.transform) if isinstance(env.transform, Compose) else [env.transform]
        found = [*chain, *found]
        env = env.base_env
    return found, env


def base_of(env: Any) -> Any:
    """Return the environment below all transforms."""
    return _chain(env)[1]


def _check_plain(one: Any) -> None:
    """Raise if a transform carries something that is not an argument."""
    kind = type(one)
    plain = all(getattr(kind, name) is getattr(Transform, name) for name in ("_reset", "_step"))
    if not isinstance(one, VecNorm | CatFrames) and not plain:
        raise RLError(
            f"the policy reads what {kind.__name__} carries from step to step, which only its environment can do: play"
            " it with TrainedRun.make_env"
        )


class Predictor:
    """Actions for observations, both as NumPy arrays, without an environment.

    What the run does to observations is included: normalization, stacking of frames, and the state of a recurrent
    policy, which is kept from call to call. The module copies nothing, so later weights of the policy are used.

    Args:
        policy: The policy.
        env: Environment of evaluations, whose specs and transforms are read; it is not stepped.

    Attributes:
        module: The `PolicyModule`.
    """

    def __init__(self, policy: Any, env: Any) -> None:
        self.module = PolicyModule(policy, env)
        self._starts = first_values(env)
        self._device = getattr(env, "device", None)
        self._carried: list[Tensor] = []

    def reset(self) -> None:
        """Begin new episodes: forget the state of a recurrent policy, and stacked frames."""
        self._carried = []

    def __call__(self, observation: Any, *, is_init: Any = None, deterministic: bool = True) -> Any:
        """Return the action for an observation, or actions for a batch of them.

        Args:
            observation: An observation as the environment gives it, an array, a number, or a dict or tuple of these,
                each also with a batch in front.
            is_init: Whether each observation is the first of an episode, which matters for recurrent policies and
                stacked frames: a bool, or one for each row. Without it a call continues, and the first one begins.
            deterministic: Whether to take the deterministic action instead of sampling as in training.

        Returns:
            An array, or a number, as the environment takes it; a dict of them if the environment has several actions.

        Raises:
            ShapeError: If an observation has another shape, or the batch another size than before.
        """
        rows, single = self._rows(observation)
        batch = rows[0].shape[0]
        carried = self._carried or self.module.start(batch, self._device)
        if carried and carried[0].shape[0] != batch:
            raise ShapeError(f"the call before had {carried[0].shape[0]} observations, got {batch}: call reset() first")
        if carried and is_init is not None:
            begins = torch.as_tensor(np.asarray(is_init), dtype=torch.bool, device=self._device)
            carried = [begins.reshape(-1, 1).expand(batch, 1), *carried[1:]]
        how = ExplorationType.DETERMINISTIC if deterministic else ExplorationType.RANDOM
        with torch.no_grad(), set_exploration_type(how):
            out = self.module(*rows, *carried)
        count = len(self.module.actions)
        if carried:
            self._carried = [torch.zeros_like(carried[0]), *out[count:]]
        actions = {
            name_of(key): self._as_numpy(value[0] if single else value)
            for key, value in zip(self.module.actions, out[:count], strict=True)
        }
        return next(iter(actions.values())) if count == 1 else actions

    def _rows(self, observation: Any) -> tuple[list[Tensor], bool]:
        """Return the entries of an observation with a batch, and whether it had none."""
        specs = self.module.observations
        rows: list[Tensor] = []
        singles: set[bool] = set()
        for index, (key, spec) in enumerate(specs.items()):
            value = np.asarray(_entry(observation, key, index, len(specs)))
            value = value - self._starts["observation"] if np.any(self._starts["observation"]) else value
            if isinstance(spec, OneHot) and value.shape[-1:] != spec.shape:
                value = np.eye(int(spec.n))[value.astype(int)]
            shape = tuple(spec.shape)
            if value.shape not in (shape, value.shape[:1] + shape):
                raise ShapeError(f"{name_of(key)} has the shape {value.shape}; expected {shape}, or (B, *{shape})")
            tensor = torch.as_tensor(value, device=self._device).to(spec.dtype)
            singles.add(value.shape == shape)
            rows.append(tensor.unsqueeze(0) if value.shape == shape else tensor)
        if len(singles) > 1 or len({row.shape[0] for row in rows}) > 1:
            raise ShapeError(f"entries have different batches: {[tuple(row.shape) for row in rows]}")
        return rows, singles.pop()

    def _as_numpy(self, value: Tensor) -> Any:
        found = value.numpy(force=True)
        found = found + self._starts["action"] if np.any(self._starts["action"]) else found
        return found if found.ndim else found[()]


def first_values(env: Any) -> dict[str, Any]:
    """Return the first values of the Discrete spaces of a Gymnasium environment; those of specs are 0."""
    simulator = getattr(_chain(env)[1], "gym_env", None)
    simulator = simulator[0] if isinstance(simulator, list | tuple) else simulator
    return {name: getattr(getattr(simulator, f"{name}_space", None), "start", 0) for name in ("observation", "action")}


def _entry(observation: Any, key: NestedKey, index: int, count: int) -> Any:
    """Return the part of an observation under a key; a sole entry may be given as it is."""
    if isinstance(observation, Mapping):
        for part in as_tuple(key):
            if not isinstance(observation, Mapping) or part not in observation:
                raise ShapeError(f"the observation has no entry {name_of(key)}, which the policy reads")
            observation = observation[part]
        return observation
    if count == 1:
        return observation
    if isinstance(observation, Sequence | tuple) and len(observation) == count:
        return observation[index]
    raise ShapeError(f"the policy reads {count} entries: pass the observation as a dict of them")
