"""State-dependent exploration."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from rl.core import load
from rl.core.arguments import as_integer
from rl.core.errors import ArgumentError, ShapeError
from rl.core.keys import NestedKey
from rl.core.specs import Unbounded
from rl.modules.explore._egreedy import exploring


class gSDEModule(nn.Module):  # noqa: N801  the name that users of TorchRL know
    """Noise on actions that is a linear function of the features, the same function during an episode.

    Raffin et al., "Smooth Exploration for Robotic Reinforcement Learning", 2021, eq. 7 to 9: ``action = mu + (sigma *
    eps) @ state``, whose distribution is normal around `mu` with the variance ``sigma^2 @ state^2``. The noise `eps` is
    drawn where its entry is NaN, as the transform of `make_tensordict_primer` sets it at the start of an episode, and
    put back in its place. Noise is added under ``ExplorationType.RANDOM`` and where none is set.

    Args:
        action_dim: Number of action dimensions.
        state_dim: Width of the features.
        sigma_init: Value of each entry of `sigma` at the start; if None, such that the standard deviation of an action
            is 1 for features of mean square 1.
        scale_min: Lower bound of the standard deviation of an action.
        scale_max: Upper bound of the standard deviation of an action.
        learn_sigma: Whether `sigma` is a parameter.
        transform: Function that is applied to the action, such as `torch.tanh`; then score actions with a distribution
            that does the same.
        device: Device of the parameters.

    Shapes: `mu` ``[*B, A]``, features ``[*B, S]`` and noise ``[*B, A, S]`` to the means ``[*B, A]``, the standard
    deviations ``[*B, A]``, the action ``[*B, A]``, and the noise.

    Raises:
        ArgumentError: if an argument is out of its range.
        ShapeError: in the call, if shapes do not agree.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> explore = TensorDictModule(
        ...     gSDEModule(action_dim=2, state_dim=4),
        ...     in_keys=["mu", "features", "eps_gSDE"],
        ...     out_keys=["loc", "scale", "action", "eps_gSDE"],
        ... )
        >>> td = TensorDict(mu=torch.zeros(3, 2), features=torch.ones(3, 4), batch_size=[3])
        >>> td["eps_gSDE"] = torch.full((3, 2, 4), torch.nan)  # the primer writes it
        >>> action = explore(td)["action"].clone()
        >>> action.equal(explore(td)["action"]), td["scale"].shape
        (True, torch.Size([3, 2]))
    """

    raw_sigma: Tensor

    def __init__(
        self,
        action_dim: int,
        state_dim: int,
        sigma_init: float | None = None,
        scale_min: float = 0.01,
        scale_max: float = 10.0,
        *,
        learn_sigma: bool = True,
        transform: Callable[[Tensor], Tensor] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.action_dim = as_integer(action_dim, "gSDEModule", "action_dim", least=0)
        self.state_dim = as_integer(state_dim, "gSDEModule", "state_dim", least=0)
        if not 0 < scale_min < scale_max or (sigma_init is not None and not sigma_init > 0):
            raise ArgumentError(
                "gSDEModule needs 0 < scale_min < scale_max and sigma_init > 0, got"
                f" {scale_min}, {scale_max} and {sigma_init}"
            )
        self.sigma_init, self.scale_min, self.scale_max = sigma_init, scale_min, scale_max
        self.learn_sigma, self.transform = learn_sigma, transform
        raw = torch.empty(self.action_dim, self.state_dim, device=device)
        if learn_sigma:
            self.raw_sigma = nn.Parameter(raw)
        else:
            self.register_buffer("raw_sigma", raw)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set `sigma` to its start."""
        if self.state_dim:
            start = self.state_dim**-0.5 if self.sigma_init is None else self.sigma_init
            with torch.no_grad():
                self.raw_sigma.fill_(start + math.log(-math.expm1(-start)))  # the inverse of softplus

    @property
    def sigma(self) -> Tensor:
        """Scale of the noise, ``[A, S]``."""
        return softplus(self.raw_sigma)

    def make_tensordict_primer(self, key: NestedKey = "eps_gSDE") -> Any:
        """Return the transform that adds the noise to an environment, not drawn at the start of each episode.

        Args:
            key: Key of the noise; a `Collector` does not record entries whose key starts with an underscore.

        Raises:
            UnknownComponentError: if rl-envs is not installed.
        """
        spec = Unbounded((self.action_dim, self.state_dim), dtype=self.raw_sigma.dtype)
        return load("transform", "tensordict-primer")({key: spec}, default_value={key: math.nan})

    def forward(self, mu: Tensor, state: Tensor, _eps_gSDE: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # noqa: N803
        """Means, standard deviations, the action, and the noise."""
        sigma = self.sigma
        expected = (*mu.shape[:-1], *sigma.shape)
        if (*mu.shape, state.shape[-1]) != expected or state.shape[:-1] != mu.shape[:-1] or _eps_gSDE.shape != expected:
            raise ShapeError(
                f"gSDEModule expects mu [*B, {self.action_dim}], features [*B, {self.state_dim}] and noise [*B,"
                f" {self.action_dim}, {self.state_dim}], got {tuple(mu.shape)}, {tuple(state.shape)} and"
                f" {tuple(_eps_gSDE.shape)}"
            )
        eps = torch.where(_eps_gSDE.isnan(), torch.randn_like(_eps_gSDE), _eps_gSDE)
        scale = (state.square() @ sigma.square().mT).sqrt().clamp(self.scale_min, self.scale_max)
        action = mu
        if exploring():
            action = mu + ((sigma * eps) @ state.unsqueeze(-1)).squeeze(-1)
        if self.transform is not None:
            action = self.transform(action)
        return mu, scale, action, eps


class LazygSDEModule(LazyModuleMixin, gSDEModule):
    """`gSDEModule` that finds out its widths at the first call.

    Args:
        sigma_init: Argument of `gSDEModule`.
        scale_min: Argument of `gSDEModule`.
        scale_max: Argument of `gSDEModule`.
        learn_sigma: Argument of `gSDEModule`.
        transform: Argument of `gSDEModule`.
        device: Device of the parameters.

    Example:
        >>> module = LazygSDEModule()
        >>> out = module(torch.zeros(3, 2), torch.ones(3, 4), torch.full((3, 2, 4), torch.nan))
        >>> module.sigma.shape
        torch.Size([2, 4])
    """

    cls_to_become: Any = gSDEModule

    def __init__(
        self,
        sigma_init: float | None = None,
        scale_min: float = 0.01,
        scale_max: float = 10.0,
        *,
        learn_sigma: bool = True,
        transform: Callable[[Tensor], Tensor] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        parent: Any = super()  # typed by torch as a protocol that no module fits
        kwargs: Any = {"learn_sigma": learn_sigma, "transform": transform, "device": device}
        parent.__init__(0, 0, sigma_init, scale_min, scale_max, **kwargs)
        make: Any = UninitializedParameter if learn_sigma else UninitializedBuffer
        self.raw_sigma = make(device=device)

    def initialize_parameters(self, mu: Tensor, state: Tensor, _eps_gSDE: Tensor) -> None:  # noqa: N803
        """Create `sigma` for means ``[*B, A]`` and features ``[*B, S]``."""
        del _eps_gSDE
        lazy: Any = self
        if lazy.has_uninitialized_params():
            self.action_dim, self.state_dim = mu.shape[-1], state.shape[-1]
            lazy.raw_sigma.materialize((self.action_dim, self.state_dim))
            self.reset_parameters()
