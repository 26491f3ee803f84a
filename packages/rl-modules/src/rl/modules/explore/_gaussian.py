"""Noise on continuous actions."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl.core.contract import Contract, Key
from rl.core.errors import SpecError
from rl.core.keys import ACTION, NestedKey, unwrap
from rl.core.lowering import Lowered, unhooked
from rl.core.specs import Bounded, Composite, TensorSpec, Unbounded
from rl.modules import _foreign
from rl.modules._keys import key_list
from rl.modules.explore._egreedy import exploring, require_spec
from rl.modules.explore._schedule import LinearSchedule
from rl.modules.policy._fit import action_leaf, spec_by_key

__all__ = ["AdditiveGaussianModule", "bounds_on", "continuous_leaf"]


def continuous_leaf(spec: Any, key: NestedKey, owner: str) -> TensorSpec:
    """The spec of a continuous action, of what a user handed in.

    Raises:
        SpecError: if it is not continuous, or a composite has no entry under `key`.
    """
    leaf: Any = action_leaf(spec, key, owner)
    if not isinstance(leaf, (Bounded, Unbounded)) or not leaf.dtype.is_floating_point:
        raise SpecError(f"{owner} adds noise to continuous actions, the spec is {leaf}")
    return leaf


def bounds_on(leaf: TensorSpec, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Copies of the bounds of a continuous action on a device; None if it has none."""
    if not isinstance(leaf, Bounded):
        return None, None
    return leaf.low.clone().to(device), leaf.high.clone().to(device)


@_foreign.explorer
class AdditiveGaussianModule(TensorDictModuleBase):
    """Add normal noise to the action, less and less, and keep it within its bounds.

    Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods", 2018, algorithm 1. Goes
    after a policy in a `TensorDictSequential`; acts under ``ExplorationType.RANDOM`` and where none is set. Call
    ``step`` with the number of frames after each batch.

    Args:
        spec: of the action, or a composite that has it under `action_key`; None if `set_spec` or
            `set_exploration_modules_spec_from_env` gives it before the first call.
        sigma_init: scale of the noise at the start: a number, or a tensor with one for each dimension of the action,
            such as ``0.1 * (spec.high - spec.low) / 2``.
        sigma_end: scale after `annealing_num_steps` frames, and from then on.
        annealing_num_steps: frames in between.
        mean: of the noise.
        std: of the noise, before it is scaled by sigma.
        action_key: what the noise is added to.

    Raises:
        SpecError: if the action is not continuous, or sigma rises; in the call, if there is no spec.

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
        self.mean, self.std = float(mean), float(std)
        self.schedule = LinearSchedule("AdditiveGaussianModule", sigma_init, sigma_end, annealing_num_steps)
        self.in_keys = key_list(key)
        self.out_keys = key_list(key)
        self.spec: Composite | None = None
        self._leaf: Any = None
        self.register_buffer("_low", None, persistent=False)
        self.register_buffer("_high", None, persistent=False)
        if spec is not None:
            self.set_spec(spec)

    def set_spec(self, spec: TensorSpec) -> None:
        """Give the spec of the action, or a composite that has it.

        Raises:
            SpecError: if the action is not continuous.
        """
        self._leaf = continuous_leaf(spec, self.out_keys[0], "AdditiveGaussianModule")
        self.spec = spec_by_key(spec, self.out_keys[0])
        self._low, self._high = bounds_on(self._leaf, self.sigma.device)

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

    def lowered(self) -> Lowered | None:
        """The module as a plain call, with the same numbers; None if it was changed or hooked."""
        if type(self) is not AdditiveGaussianModule or not unhooked(self):
            return None
        return Lowered(lambda action: (self._explore(action) if exploring() else action,), self.in_keys, self.out_keys)

    def _explore(self, action: Tensor) -> Tensor:
        require_spec(self)
        noise = torch.randn_like(action)
        if self.std != 1.0 or self.mean:
            noise = noise * self.std + self.mean
        noisy = action + noise * self.sigma.to(noise.dtype)
        return noisy if self._low is None else torch.clamp(noisy, self._low, self._high)
