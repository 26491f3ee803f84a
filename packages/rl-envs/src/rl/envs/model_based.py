"""Environments whose step is a learned model, for imagination and planning."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictSequential
from torch import Tensor

from rl.core.errors import ArgumentError, ContractError, RLError
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.specs import Bounded, Composite, Unbounded
from rl.envs.base._base import EnvBase
from rl.envs.base._specs import leaf_keys
from rl.envs.native._base import SeededState
from rl.envs.transforms._base import Parent
from rl.envs.transforms._module import ModuleTransform

__all__ = ["DreamerDecoder", "DreamerEnv", "ImaginedEnv", "ModelBasedEnvBase", "WorldModelEnv"]

Start = Callable[[torch.Size], TensorDictBase]
Termination = Callable[[TensorDictBase], Tensor]


class ModelBasedEnvBase(SeededState, EnvBase):
    """Base class of environments whose step is a module on TensorDicts; differentiable in states and actions.

    The module reads root entries and the action. An entry of the specs is what the module writes under ``next``, or at
    the root where it writes none there. Assign the specs as for `EnvBase`, or copy them with `set_specs_from_env`.

    ``reset(td)`` begins in the observations of `td`: states of a replay buffer, for example. A reset without them, and
    of episodes that have ended, takes `start`, or draws each entry from its spec. `set_seed` seeds these draws; a model
    that samples takes torch's global generator.

    Without a batch size it takes TensorDicts of any batch. The parameters are those of the module: they are no part of
    the environment's state.

    Args:
        world_model: Module with ``in_keys`` and ``out_keys``, which may write ``terminated`` (bool ``[*B, 1]``).
        device: Device of all tensors, to which the module is moved; that of the module if None.
        batch_size: Number of elements in each batch dimension.
        start: Function of the batch size to a TensorDict with the observations of new episodes.
        termination: Function of the TensorDict after the module to whether the step is terminal, bool ``[*B, 1]``: a
            known rule, or a threshold on a head of the module. Without it, and without a flag of the module, no
            episode ends.

    Raises:
        ArgumentError: If the module has no keys.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> from torch import nn
        >>> from rl.envs import PendulumEnv
        >>> net = nn.Linear(4, 4)
        >>> def move(observation, action):
        ...     return net(torch.cat([observation, action], -1)).split([3, 1], -1)
        >>> keys = [("next", "observation"), ("next", "reward")]
        >>> env = ModelBasedEnvBase(TensorDictModule(move, ["observation", "action"], keys))
        >>> real = PendulumEnv()
        >>> env = env.set_specs_from_env(real)
        >>> env.rollout(15, tensordict=real.with_batch([100]).reset()).batch_size
        torch.Size([100, 15])
    """

    def __init__(
        self,
        world_model: Any,
        device: torch.device | str | int | None = None,
        batch_size: Iterable[int] | None = None,
        *,
        start: Start | None = None,
        termination: Termination | None = None,
    ) -> None:
        super().__init__(batch_size=batch_size or (), device=device)
        owner = type(self).__name__
        if not hasattr(world_model, "in_keys") or not hasattr(world_model, "out_keys"):
            raise ArgumentError(
                f"{owner} steps a module with in_keys and out_keys, got {type(world_model).__name__}: wrap it in"
                " tensordict.nn.TensorDictModule(module, in_keys, out_keys)"
            )
        self.batch_locked = bool(self.batch_size)
        self._make_generator(self.device, None)
        self.world_model = world_model if device is None else world_model.to(self.device)
        self.start, self.termination = start, termination
        self._reads = {unwrap(key) for key in world_model.in_keys}
        written = {unwrap(key) for key in world_model.out_keys}
        below = {unwrap(as_tuple(key)[1:]): key for key in written if as_tuple(key)[0] == "next"}
        #: where the module writes an entry of the next step
        self._sources: dict[NestedKey, NestedKey] = {**{key: key for key in written}, **below}

    def set_specs_from_env(self, env: Any) -> Self:
        """Copy the specs of an environment, of its observations those that the model writes, without bounds.

        Observations that the model reads become the state, from which it continues.

        Args:
            env: The real environment, an `EnvBase`.

        Returns:
            This environment.
        """
        self._set_action_and_reward(env)
        self._set_observation(self._written_of(env))
        return self

    def _set_action_and_reward(self, env: Any) -> None:
        for role in ("full_action", "full_reward", "done"):
            setattr(self, f"{role}_spec", getattr(env, f"{role}_spec_unbatched").clone())

    def _written_of(self, env: Any) -> Composite:
        """Return specs of the observations of an environment that the model writes; predictions may leave bounds."""
        spec, found = env.observation_spec_unbatched, Composite({})
        for key in leaf_keys(spec):
            if key in self._sources:
                one = spec[key]
                bounded = isinstance(one, Bounded)
                found[key] = Unbounded(one.shape, dtype=one.dtype, device=one.device) if bounded else one.clone()
        return found

    def _set_observation(self, spec: Composite) -> None:
        """Assign the observations, and the state."""
        self.observation_spec = spec.clone()
        self.state_spec = Composite({key: spec[key].clone() for key in leaf_keys(spec) if self._is_read(key)})

    def _is_read(self, key: NestedKey) -> bool:
        parts = as_tuple(key)  # a module may read a TensorDict as a complete
        return any(unwrap(parts[:count]) in self._reads for count in range(1, len(parts) + 1))

    # ---- episodes

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        masked = tensordict is None or any(as_tuple(key)[-1] == "_reset" for key in leaf_keys(tensordict))
        begun = None if masked else self._set_state(tensordict)
        if begun is None and self.start is not None:
            begun = self._set_state(self.start(self.batch_size))
        return self._draw() if begun is None else begun

    def _set_state(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the observations of a TensorDict, or None if it has none of them.

        Raises:
            ContractError: If it has some of them.
        """
        found: Any = {key: tensordict.get(key, None) for key in self.observation_keys} if tensordict is not None else {}
        missing = [key_str(key) for key, value in found.items() if value is None]
        if len(missing) == len(found):
            return None
        if missing:
            raise ContractError(
                f"{self._rl.owner}.reset was given states without {', '.join(missing)}: write all of"
                f" {', '.join(map(key_str, found))}"
            )
        return self._rl.tensordict(found)

    def _draw(self) -> TensorDictBase:
        """Return observations drawn from their specs."""
        return self._rl.tensordict({}).update(self.observation_spec.rand(generator=self._generator))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        out: TensorDictBase = self.world_model(tensordict.copy())
        entries: dict[NestedKey, Any] = {}
        for keys in (self.observation_keys, self.reward_keys, self.done_keys):
            for key in keys:
                source = self._sources.get(key)
                if source is not None:
                    entries[key] = out.get(source)
        if self.termination is not None:
            entries["terminated"] = self.termination(out)
        return self._rl.tensordict(entries)

    def to(self, target: torch.device | str | int | torch.dtype) -> EnvBase:
        """Move the environment and its model to a device, or convert its floating-point entries."""
        if not isinstance(target, torch.dtype):
            self.world_model.to(target)
        return super().to(target)


class WorldModelEnv(ModelBasedEnvBase):
    """Environment of a world model that takes the place of a real environment, with its actions and rewards.

    The model steps in its latent state: its encoder runs at a reset alone, where the given TensorDict lacks the latent
    state. A model without latent state, as `EnsembleDynamics` of rl-modules, steps in the observations.

    Args:
        world_model: `WorldModel` of rl-modules, of which ``step_module`` steps and ``encoder`` encodes; or a module
            from observation and action to the next observation and reward.
        base_env: Real environment, of which the specs are read.
        observation_spec: Spec of the observations; by default the latent state, of the shape that the encoder writes,
            or what the model writes of the observations of `base_env`, where it reads no latent state.
        batch_size: Number of elements in each batch dimension; that of `base_env` if None.
        device: Device of all tensors; that of `base_env` if None.
        latent_key: Key of the latent state.
        start: See `ModelBasedEnvBase`; what it returns may be observations of the real environment.
        termination: See `ModelBasedEnvBase`.

    Raises:
        ArgumentError: If the module has no keys.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> from torch import nn
        >>> from rl.envs import PendulumEnv
        >>> class Model(nn.Module):  # WorldModel of rl-modules has this form
        ...     encoder = TensorDictModule(nn.Linear(3, 2), ["observation"], ["latent"])
        ...     step_module = TensorDictSequential(
        ...         TensorDictModule(torch.add, ["latent", "action"], [("next", "latent")]),
        ...         TensorDictModule(nn.Linear(2, 1), [("next", "latent")], [("next", "reward")]),
        ...     )
        >>> real = PendulumEnv()
        >>> env = WorldModelEnv(Model(), real)
        >>> env.rollout(5, tensordict=real.with_batch([100]).reset())["next", "latent"].shape
        torch.Size([100, 5, 2])
    """

    def __init__(
        self,
        world_model: Any,
        base_env: Any,
        *,
        observation_spec: Composite | None = None,
        batch_size: Iterable[int] | None = None,
        device: torch.device | str | int | None = None,
        latent_key: NestedKey = "latent",
        start: Start | None = None,
        termination: Termination | None = None,
    ) -> None:
        super().__init__(
            getattr(world_model, "step_module", world_model),
            base_env.device if device is None else device,
            base_env.batch_size if batch_size is None else batch_size,
            start=start,
            termination=termination,
        )
        self.latent_key = unwrap(latent_key)
        self._encoder: Any = getattr(world_model, "encoder", None)
        self._set_action_and_reward(base_env)
        if observation_spec is None:
            encodes = self._encoder is not None and self._is_read(self.latent_key)
            observation_spec = self._latent_spec(base_env) if encodes else self._written_of(base_env)
        self._set_observation(observation_spec)

    def _latent_spec(self, base_env: Any) -> Composite:
        """Return the spec of what the encoder writes for zeros."""
        zeros = TensorDict({}, [1]).update(base_env.observation_spec_unbatched.zero((1,)))  # some need a batch
        with torch.no_grad():
            latent = self._encoder(zeros).get(self.latent_key)[0]
        return Composite({self.latent_key: Unbounded(latent.shape, dtype=latent.dtype, device=latent.device)})

    def _set_state(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        begun = super()._set_state(tensordict)
        if begun is not None or tensordict is None or self._encoder is None:
            return begun
        if any(tensordict.get(key, None) is None for key in self._encoder.in_keys):
            return None
        return super()._set_state(self._encoder(tensordict.copy()))

    def _draw(self) -> TensorDictBase:
        raise RLError(
            f"{self._rl.owner} knows no states to begin in: pass reset a TensorDict with observations or"
            f" {key_str(self.latent_key)}, or the environment start="
        )


class ImaginedEnv(ModelBasedEnvBase):
    """Environment of a model that predicts a normal distribution of the observation, as in PILCO.

    Deisenroth and Rasmussen, "PILCO: a model-based and data-efficient approach to policy search", 2011. Observations
    are ``("observation", "mean")`` ``[*B, o]`` and ``("observation", "var")`` ``[*B, o, o]``. ``reset(td)`` takes
    these, or ``observation`` ``[*B, o]``, which is then certain. The reward is 0 where the model writes none: with
    uncertain observations it is an expectation, which the caller computes from them. No episode ends.

    Args:
        world_model_module: Module that reads ``observation``, which is a TensorDict of mean and covariance, and
            ``action``, and writes mean and covariance below `next_observation_key`.
        base_env: Real environment, of which the specs are read.
        batch_size: Number of elements in each batch dimension; that of `base_env` if None.
        next_observation_key: Key under which the module writes the next observation.
        start: See `ModelBasedEnvBase`.

    Raises:
        ArgumentError: If the module has no keys.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> from rl.envs import PendulumEnv
        >>> def widen(observation, action):
        ...     return observation["mean"] + 0.1 * action, observation["var"] + torch.eye(3)
        >>> keys = [("next", "observation", "mean"), ("next", "observation", "var")]
        >>> real = PendulumEnv()
        >>> env = ImaginedEnv(TensorDictModule(widen, ["observation", "action"], keys), real)
        >>> steps = env.rollout(4, tensordict=real.with_batch([8]).reset())
        >>> steps["next", "observation", "var"][0, -1].diagonal()
        tensor([4., 4., 4.])
    """

    def __init__(
        self,
        world_model_module: Any,
        base_env: Any,
        batch_size: Iterable[int] | None = None,
        next_observation_key: NestedKey = ("next", "observation"),
        *,
        start: Start | None = None,
    ) -> None:
        size = base_env.batch_size if batch_size is None else batch_size
        super().__init__(world_model_module, base_env.device, size, start=start)
        self._set_action_and_reward(base_env)
        for name in ("mean", "var"):
            self._sources["observation", name] = unwrap((*as_tuple(next_observation_key), name))
        spec = base_env.observation_spec_unbatched["observation"]
        width, kind = spec.shape[-1], {"dtype": spec.dtype, "device": spec.device}
        both = Composite(mean=Unbounded((width,), **kind), var=Unbounded((width, width), **kind))
        self._set_observation(Composite(observation=both))
        self._certain = spec

    def _set_state(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        mean = None if tensordict is None else tensordict.get("observation", None)
        return self._surely(mean) if isinstance(mean, Tensor) else super()._set_state(tensordict)

    def _surely(self, mean: Tensor) -> TensorDictBase:
        width = mean.shape[-1]
        var = mean.new_zeros(*mean.shape[:-1], width, width)
        return self._rl.tensordict({("observation", "mean"): mean, ("observation", "var"): var})

    def _draw(self) -> TensorDictBase:
        return self._surely(self._certain.rand(self.batch_size, generator=self._generator))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        out = super()._step(tensordict)
        for key in self.reward_keys:
            if key not in self._sources:
                out.set(key, self.full_reward_spec[key].zero())
        return out


class DreamerEnv(ModelBasedEnvBase):
    """Environment of a recurrent state-space model, for imagination: observations are ``state`` and ``belief``.

    No episode ends, unless `termination` says so: imagination has a fixed number of steps. Call `set_specs_from_env`
    for actions and rewards before the first reset.

    Args:
        world_model: Module that reads ``state``, ``belief`` and ``action``, and writes the next ``state`` and
            ``belief``, and ``reward``, at the root or under ``next``; `WorldModelWrapper` of rl-modules, for example.
        prior_shape: Shape of the state.
        belief_shape: Shape of the belief.
        obs_decoder: Module from ``state`` and ``belief`` to observations, for `decode_obs` and `DreamerDecoder`.
        device: Device of all tensors; that of the module if None.
        batch_size: Number of elements in each batch dimension.
        start: See `ModelBasedEnvBase`.
        termination: See `ModelBasedEnvBase`.

    Raises:
        ArgumentError: If the module has no keys.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> from rl.envs import PendulumEnv
        >>> def move(state, belief, action):
        ...     belief = torch.tanh(belief + action)
        ...     return state + belief, belief, state.sum(-1, keepdim=True)
        >>> names = ["state", "belief", "reward"]
        >>> model = TensorDictModule(move, ["state", "belief", "action"], names)
        >>> env = DreamerEnv(model, prior_shape=(4,), belief_shape=(4,)).set_specs_from_env(PendulumEnv())
        >>> starts = TensorDict(state=torch.zeros(1024, 4), belief=torch.zeros(1024, 4), batch_size=[1024])
        >>> env.rollout(15, tensordict=starts)["next", "reward"].shape
        torch.Size([1024, 15, 1])
    """

    def __init__(
        self,
        world_model: Any,
        prior_shape: Iterable[int],
        belief_shape: Iterable[int],
        obs_decoder: Any = None,
        device: torch.device | str | int | None = None,
        batch_size: Iterable[int] | None = None,
        *,
        start: Start | None = None,
        termination: Termination | None = None,
    ) -> None:
        super().__init__(world_model, device, batch_size, start=start, termination=termination)
        self.obs_decoder = obs_decoder if device is None or obs_decoder is None else obs_decoder.to(self.device)
        self.prior_shape, self.belief_shape = torch.Size(prior_shape), torch.Size(belief_shape)
        self._set_observation(Composite(state=Unbounded(self.prior_shape), belief=Unbounded(self.belief_shape)))

    def set_specs_from_env(self, env: Any) -> Self:
        """Copy the specs of actions, rewards and done flags of the real environment, and return this one."""
        self._set_action_and_reward(env)
        return self

    def decode_obs(self, tensordict: TensorDictBase, *, compute_latents: bool = False) -> TensorDictBase:
        """Write the observations of states.

        Args:
            tensordict: States ``[*B]``, with actions if `compute_latents`.
            compute_latents: Whether the model takes a step before.

        Raises:
            RLError: If there is no decoder.
        """
        if self.obs_decoder is None:
            raise RLError(f"{self._rl.owner} has no decoder: give it obs_decoder=")
        return self.obs_decoder(self.world_model(tensordict) if compute_latents else tensordict)

    def to(self, target: torch.device | str | int | torch.dtype) -> EnvBase:
        """Move the environment, its model and its decoder to a device, or convert its floating-point entries."""
        if self.obs_decoder is not None and not isinstance(target, torch.dtype):
            self.obs_decoder.to(target)
        return super().to(target)


class DreamerDecoder(ModuleTransform):
    """Writes the observations that the decoder of a `DreamerEnv` sees in its states.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> from torch import nn
        >>> from rl.envs import PendulumEnv
        >>> def move(state, belief, action):
        ...     return state + action, belief, state
        >>> model = TensorDictModule(move, ["state", "belief", "action"], ["state", "belief", "reward"])
        >>> decoder = TensorDictModule(nn.Linear(1, 3), ["state"], ["reco_pixels"])
        >>> env = DreamerEnv(model, (1,), (1,), decoder).set_specs_from_env(PendulumEnv())
        >>> env.append_transform(DreamerDecoder()).rollout(2)["next", "reco_pixels"].shape
        torch.Size([2, 3])
    """

    def __init__(self) -> None:
        super().__init__(module=TensorDictSequential())  # until there is an environment

    def set_parent(self, parent: Parent | None) -> None:
        """Take the decoder of the environment.

        Raises:
            RLError: If the transform belongs to another environment, or this one has no decoder.
        """
        if parent is not None and self._parent is None:
            decoder = getattr(parent.base_env, "obs_decoder", None)
            if decoder is None:
                raise RLError("DreamerDecoder: the environment has no decoder: pass DreamerEnv obs_decoder=")
            super().__init__(module=decoder)
        super().set_parent(parent)
