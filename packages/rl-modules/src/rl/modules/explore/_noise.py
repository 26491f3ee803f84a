"""Noise on continuous actions."""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rl.core import load
from rl.core.arguments import as_number, constructor_setting, module_arguments
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ShapeError, SpecError
from rl.core.keys import ACTION, NestedKey, next_key, unwrap
from rl.core.policy_program import ProgramBuilder, Register
from rl.core.recurrent import State
from rl.core.specs import Bounded, Composite, TensorSpec, Unbounded
from rl.core.tensor_functions import TensorFunction, unhooked
from rl.modules._keys import key_list
from rl.modules.explore._egreedy import EGreedyModule, LinearSchedule, check_spec, exploring, scheduled
from rl.modules.policy._fit import action_leaf, spec_by_key


def continuous_leaf(spec: Any, key: NestedKey, owner: str) -> TensorSpec:
    """Return the spec of a continuous action, which may be an entry of a composite.

    Raises:
        SpecError: if it is not continuous, or a composite has no entry under `key`.
    """
    leaf: Any = action_leaf(spec, key, owner)
    if not isinstance(leaf, (Bounded, Unbounded)) or not leaf.dtype.is_floating_point:
        raise SpecError(f"{owner} adds noise to continuous actions, the spec is {leaf}")
    return leaf


def bounds_on(leaf: TensorSpec, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Return copies of the bounds of a continuous action on a device; None if it has none."""
    if not isinstance(leaf, Bounded):
        return None, None
    return leaf.low.clone().to(device), leaf.high.clone().to(device)


@module_arguments()
class AdditiveGaussianModule(TensorDictModuleBase):
    """Add normal noise to the action, less and less, and keep it within its bounds.

    Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods", 2018, algorithm 1. Goes
    after a policy in a `TensorDictSequential`; acts under ``ExplorationType.RANDOM`` and where none is set. Call
    ``step`` with the number of frames after each batch.

    Args:
        spec: Spec of the action, or a composite that has it under `action_key`; None if `set_spec` or
            `set_exploration_modules_spec_from_env` sets it before the first call.
        sigma_init: Scale of the noise at the start: a number, or a tensor with one for each dimension of the action,
            such as ``0.1 * (spec.high - spec.low) / 2``.
        sigma_end: Scale after `annealing_num_steps` frames, and from then on.
        annealing_num_steps: Number of frames in between.
        mean: Mean of the noise.
        std: Standard deviation of the noise, before it is scaled by sigma.
        action_key: Key of the action, to which the noise is added.

    Raises:
        ArgumentError: if sigma rises.
        SpecError: if the action is not continuous; in the call, if there is no spec.

    Example:
        >>> from rl.core.specs import Bounded
        >>> from tensordict import TensorDict
        >>> explore = AdditiveGaussianModule(Bounded(-1.0, 1.0, (2,)), sigma_init=5.0)
        >>> bool((explore(TensorDict(action=torch.zeros(2)))["action"].abs() <= 1).all())
        True
    """

    _low: Tensor | None
    _high: Tensor | None

    def __init__(
        self,
        spec: TensorSpec | None,
        sigma_init: float | Tensor = 1.0,
        sigma_end: float | Tensor = 0.1,
        annealing_num_steps: int = 1000,
        mean: float = 0.0,
        std: float = 1.0,
        *,
        action_key: NestedKey = ACTION,
    ) -> None:
        super().__init__()
        key = unwrap(action_key)
        self.mean = as_number(mean, "AdditiveGaussianModule", "mean")
        self.std = as_number(std, "AdditiveGaussianModule", "std", least=0)
        self.schedule = LinearSchedule("AdditiveGaussianModule", sigma_init, sigma_end, annealing_num_steps)
        self.in_keys = key_list(key)
        self.out_keys = key_list(key)
        self._spec: Composite | None = None
        self._action_key = key
        self._leaf: Any = None
        self.register_buffer("_low", None, persistent=False)
        self.register_buffer("_high", None, persistent=False)
        if spec is not None:
            self.set_spec(spec)

    def set_spec(self, spec: TensorSpec) -> None:
        """Set the spec of the action, or a composite that has it.

        Raises:
            SpecError: if the action is not continuous.
        """
        self._leaf = continuous_leaf(spec, self.out_keys[0], "AdditiveGaussianModule")
        self._spec = spec_by_key(spec, self.out_keys[0])
        self._low, self._high = bounds_on(self._leaf, self.sigma.device)

    spec: Composite | None = constructor_setting("_spec", "Call set_spec(spec)")
    """Composite with the spec of the action; None before it is given."""
    action_key: NestedKey = constructor_setting("_action_key")
    """Key of the action."""
    sigma_init = scheduled("start", "Scale of the noise at the start; it may be assigned.")
    sigma_end = scheduled("end", "Scale after `annealing_num_steps` frames; it may be assigned.")
    annealing_num_steps = scheduled("steps", "Number of frames in between; it may be assigned.")

    @property
    def sigma(self) -> Tensor:
        """Scale of the noise, at present."""
        return self.schedule.value

    @property
    def contract(self) -> Contract:
        """What is read and written."""
        remedy = "Put AdditiveGaussianModule after the policy, in a TensorDictSequential."
        shape, dtype = (None, None) if self._leaf is None else (tuple(self._leaf.shape[-1:]), self._leaf.dtype)
        action = Key(self.out_keys[0], shape, "action with noise", dtype, remedy=remedy)
        return Contract((action,), (action,))

    def step(self, frames: int = 1) -> None:
        """Lower the noise by `frames` frames."""
        self.schedule.step(frames)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Add noise to the action.

        Raises:
            ContractError: if the action is absent.
        """
        if exploring():
            action = tensordict.get(self.in_keys[0], None)
            if action is None:
                self.contract.refuse(tensordict, self.in_keys[0], self)
            tensordict.set(self.out_keys[0], self._explore(action))
        return tensordict

    def lowered(self) -> TensorFunction | None:
        """Return the module as a plain call, with the same numbers; None if it was changed or hooked."""
        if type(self) is not AdditiveGaussianModule or not unhooked(self):
            return None
        return TensorFunction(
            lambda action: (self._explore(action) if exploring() else action,), self.in_keys, self.out_keys
        )

    def describe(self, builder: ProgramBuilder, action: Register) -> tuple[Register, ...]:
        """Append the noise to a program; see `rl.core.policy_program`."""
        plain = type(self) is AdditiveGaussianModule and self._spec is not None and self.std == 1.0 and not self.mean
        if not plain or not action.width or self.sigma.numel() not in {1, action.width}:
            builder.reject("AdditiveGaussianModule has no spec of a vector, or a mean or scale of its own")
        noisy, width = Register(action.width), action.width
        low, high = (None if end is None else builder.row(end, width) for end in (self._low, self._high))
        tensors = [lambda: self.sigma, lambda: low, lambda: high]
        builder.add("noise", [action], [noisy], tensors, one_sigma=self.sigma.numel() == 1)
        return (noisy,)

    def _explore(self, action: Tensor) -> Tensor:
        check_spec(self)
        noise = torch.randn_like(action)
        if self.std != 1.0 or self.mean:
            noise = noise * self.std + self.mean
        noisy = action + noise * self.sigma.to(noise.dtype)
        return noisy if self._low is None else torch.clamp(noisy, self._low, self._high)


_NOISE, _STEPS = ("ornstein_uhlenbeck", "noise"), ("ornstein_uhlenbeck", "steps")


@module_arguments()
class OrnsteinUhlenbeckProcessModule(TensorDictModuleBase):
    """Add noise of an Ornstein-Uhlenbeck process to the action, less and less, and keep it within its bounds.

    Lillicrap et al., "Continuous control with deep reinforcement learning", 2015, section 3: ``x' = x + theta (mu - x)
    dt + sigma sqrt(dt) n`` with standard normal `n`; the action becomes ``action + eps x'``. Goes after a policy in a
    `TensorDictSequential`; acts under ``ExplorationType.RANDOM`` and where none is set. Call ``step`` with the number
    of frames after each batch.

    The noise and the number of steps since the start of the trajectory are recurrent states ``("ornstein_uhlenbeck",
    "noise")`` and ``("ornstein_uhlenbeck", "steps")``: a `Collector` initializes and passes them on; in a loop of your
    own the transform of `make_tensordict_primer` does.

    Args:
        spec: Spec of one action, ``env.action_spec_unbatched``, or a composite that has it under `action_key`; None if
            `set_spec` or `set_exploration_modules_spec_from_env` sets it before the first call.
        eps_init: Factor of the noise at the start.
        eps_end: Factor after `annealing_num_steps` frames, and from then on.
        annealing_num_steps: Number of frames in between.
        theta: Rate at which the noise returns to `mu`.
        mu: Mean of the noise.
        sigma: Volatility of the noise: a number, or a tensor with one for each dimension of the action.
        dt: Length of a step.
        x0: Noise before the first step of a trajectory.
        sigma_min: Volatility after `n_steps_annealing` steps of a trajectory, and from then on; `sigma` if None.
        n_steps_annealing: Number of steps in between.
        action_key: Key of the action, to which the noise is added.

    Raises:
        ArgumentError: if `eps` or `sigma` rises.
        SpecError: if the action is not continuous; in the call, if there is no spec.

    Example:
        >>> from tensordict import TensorDict
        >>> explore = OrnsteinUhlenbeckProcessModule(Unbounded((2,)), sigma=0.0, theta=1.0, mu=1.0, dt=0.5)
        >>> td = TensorDict(action=torch.zeros(2))
        >>> for state in explore.states:
        ...     td[state.name] = state.start()
        >>> explore(td)["action"]
        tensor([0.5000, 0.5000])
    """

    _low: Tensor | None
    _high: Tensor | None
    sigma: float | Tensor
    sigma_min: float | Tensor

    def __init__(  # noqa: PLR0913, PLR0917  the names that users of TorchRL know
        self,
        spec: TensorSpec | None,
        eps_init: float = 1.0,
        eps_end: float = 0.1,
        annealing_num_steps: int = 1000,
        theta: float = 0.15,
        mu: float = 0.0,
        sigma: float | Tensor = 0.2,
        dt: float = 0.01,
        x0: float = 0.0,
        sigma_min: float | Tensor | None = None,
        n_steps_annealing: int = 1000,
        *,
        action_key: NestedKey = ACTION,
    ) -> None:
        super().__init__()
        least = sigma if sigma_min is None else sigma_min
        ordered = torch.as_tensor((least >= 0) & (least <= sigma))
        if not bool(ordered.all()) or n_steps_annealing < 1 or dt <= 0:
            raise ArgumentError(
                "OrnsteinUhlenbeckProcessModule needs sigma >= sigma_min >= 0, n_steps_annealing >= 1 and dt > 0, got"
                f" {sigma}, {least}, {n_steps_annealing} and {dt}"
            )
        owner = "OrnsteinUhlenbeckProcessModule"
        self.theta, self.dt = as_number(theta, owner, "theta", least=0), as_number(dt, owner, "dt", above=0)
        self.mu, self.x0 = as_number(mu, owner, "mu"), as_number(x0, owner, "x0")
        for name, value in (("sigma", sigma), ("sigma_min", least)):
            if isinstance(value, Tensor):
                self.register_buffer(name, value.clone(), persistent=False)
            else:
                setattr(self, name, value)
        self.n_steps_annealing = n_steps_annealing
        self.schedule = LinearSchedule("OrnsteinUhlenbeckProcessModule", eps_init, eps_end, annealing_num_steps)
        key = unwrap(action_key)
        self.in_keys = key_list([key, _NOISE, _STEPS])
        self.out_keys = key_list([key, next_key(_NOISE), next_key(_STEPS)])
        self._spec: Composite | None = None
        self._action_key = key
        self._leaf: Any = None
        self.register_buffer("_low", None, persistent=False)
        self.register_buffer("_high", None, persistent=False)
        if spec is not None:
            self.set_spec(spec)

    def set_spec(self, spec: TensorSpec) -> None:
        """Set the spec of the action, or a composite that has it.

        Raises:
            SpecError: if the action is not continuous.
        """
        self._leaf = continuous_leaf(spec, self.out_keys[0], "OrnsteinUhlenbeckProcessModule")
        self._spec = spec_by_key(spec, self.out_keys[0])
        self._low, self._high = bounds_on(self._leaf, self.eps.device)

    spec: Composite | None = constructor_setting("_spec", "Call set_spec(spec)")
    """Composite with the spec of the action; None before it is given."""
    action_key: NestedKey = constructor_setting("_action_key")
    """Key of the action."""
    eps_init = scheduled("start", "Factor of the noise at the start; it may be assigned.")
    eps_end = scheduled("end", "Factor after `annealing_num_steps` frames; it may be assigned.")
    annealing_num_steps = scheduled("steps", "Number of frames in between; it may be assigned.")

    @property
    def eps(self) -> Tensor:
        """Factor of the noise, at present."""
        return self.schedule.value

    @property
    def states(self) -> tuple[State, ...]:
        """The noise, ``[*B, *A]``, and the number of steps, ``[*B, 1]``; none before the spec is known."""
        if self._leaf is None:
            return ()
        owner = "OrnsteinUhlenbeckProcessModule"
        noise = State(_NOISE, tuple(self._leaf.shape), self._leaf.dtype, self.x0, owner)
        return noise, State(_STEPS, (1,), torch.int64, 0.0, owner)

    @property
    def contract(self) -> Contract:
        """What is read and written."""
        remedy = "Put OrnsteinUhlenbeckProcessModule after the policy, in a TensorDictSequential."
        shape, dtype = (None, None) if self._leaf is None else (tuple(self._leaf.shape), self._leaf.dtype)
        action = Key(self.out_keys[0], shape, "action with noise", dtype, remedy=remedy)
        remedy = "A Collector writes it; in a loop of your own the transform of make_tensordict_primer() does."
        reads = [Key(s.name, s.shape, "state of the process", s.dtype, remedy=remedy) for s in self.states]
        return Contract(
            (action, *reads), (action, *(Key(next_key(s.name), s.shape, dtype=s.dtype) for s in self.states))
        )

    def make_tensordict_primer(self) -> Any:
        """Return the transform that starts the process at each episode, for a loop without a `Collector`.

        Raises:
            SpecError: if there is no spec.
            UnknownComponentError: if rl-envs is not installed.
        """
        check_spec(self)
        specs = {state.name: Unbounded(state.shape, dtype=state.dtype) for state in self.states}
        return load("transform", "tensordict-primer")(specs, default_value={_NOISE: self.x0})

    def step(self, frames: int = 1) -> None:
        """Lower the factor of the noise by `frames` frames."""
        self.schedule.step(frames)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Add noise to the action, and write the state of the process after the step.

        Raises:
            ContractError: if the action or the state is absent.
            ShapeError: if their shapes differ, as with the spec of a batch.
            SpecError: if there is no spec.
        """
        if exploring():
            check_spec(self)
            leaves: list[Any] = [tensordict.get(key, None) for key in self.in_keys]
            for key, leaf in zip(self.in_keys, leaves, strict=True):
                if leaf is None:
                    self.contract.refuse(tensordict, key, self)
            for key, value in zip(self.out_keys, self._explore(*leaves), strict=True):
                tensordict.set(key, value)
        return tensordict

    def lowered(self) -> TensorFunction | None:
        """Return the module as a plain call, with the same numbers; None if it was changed or hooked."""
        if type(self) is not OrnsteinUhlenbeckProcessModule or not unhooked(self):
            return None

        def call(*leaves: Tensor) -> tuple[Tensor, ...]:
            return self._explore(*leaves) if exploring() else leaves

        return TensorFunction(call, self.in_keys, self.out_keys)

    def _explore(self, action: Tensor, noise: Tensor, steps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        check_spec(self)
        if noise.shape != action.shape:
            raise ShapeError(
                f"OrnsteinUhlenbeckProcessModule got actions {list(action.shape)} and noise {list(noise.shape)}: its"
                f" spec {list(self._leaf.shape)} is that of one action, without a batch. Give it"
                " env.action_spec_unbatched, or call set_exploration_modules_spec_from_env(policy, env)"
            )
        share = (steps.to(action.dtype) / self.n_steps_annealing).clamp(max=1)
        share = share.reshape(*steps.shape[:-1], *[1] * len(self._leaf.shape))
        sigma, least = (
            one.to(action.dtype) if isinstance(one, Tensor) else one for one in (self.sigma, self.sigma_min)
        )
        sigma = sigma + (least - sigma) * share
        noise = noise + self.theta * (self.mu - noise) * self.dt
        noise = noise + sigma * math.sqrt(self.dt) * torch.randn_like(noise)
        noisy = action + self.eps * noise
        return noisy if self._low is None else torch.clamp(noisy, self._low, self._high), noise, steps + 1


def set_exploration_modules_spec_from_env(policy: nn.Module, env: Any) -> None:
    """Give the exploration modules of a policy the specs of their actions, in place.

    Args:
        policy: Module with any number of `EGreedyModule`, `AdditiveGaussianModule` and
            `OrnsteinUhlenbeckProcessModule` in it.
        env: Environment, or another object with ``full_action_spec_unbatched``, a composite with the specs of all
            actions of one element.

    Raises:
        SpecError: if the environment has no action under the key of a module, or one of another kind.

    Example:
        >>> from types import SimpleNamespace
        >>> from rl.core.specs import Composite, OneHot
        >>> explore = EGreedyModule(spec=None)
        >>> env = SimpleNamespace(full_action_spec_unbatched=Composite(action=OneHot(3)))
        >>> set_exploration_modules_spec_from_env(explore, env)
        >>> explore.spec["action"].n
        3
    """
    for module in policy.modules():
        if isinstance(module, (EGreedyModule, AdditiveGaussianModule, OrnsteinUhlenbeckProcessModule)):
            module.set_spec(env.full_action_spec_unbatched)
