"""World models that are composed of parts, and ensembles of probabilistic dynamics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from rl.core.arguments import as_integer, as_number
from rl.core.errors import ArgumentError, ShapeError, UnsupportedError
from rl.core.keys import NestedKey, next_key, unwrap
from rl.modules.layers import StackedLinear


class WorldModel(TensorDictModuleBase):
    """World model of an encoder, dynamics, a reward head, and optionally heads of the done flag and the observation.

    Args:
        encoder: Module from observations to a latent state.
        dynamics: Module from latent state and action to the latent state under ``next``.
        reward_head: Module from the latent state under ``next`` to ``("next", "reward")``.
        done_head: Module from the latent state under ``next`` to ``("next", "done")``.
        decoder: Module from a latent state to an observation.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> class Move(nn.Module):
        ...     def forward(self, latent, action):
        ...         return latent + action
        >>> model = WorldModel(
        ...     TensorDictModule(nn.Linear(3, 2), ["observation"], ["latent"]),
        ...     TensorDictModule(Move(), ["latent", "action"], [("next", "latent")]),
        ...     TensorDictModule(nn.Linear(2, 1), [("next", "latent")], [("next", "reward")]),
        ... )
        >>> td = model.encode(TensorDict(observation=torch.zeros(4, 3), action=torch.zeros(4, 2), batch_size=[4]))
        >>> model.step(td)["next", "reward"].shape
        torch.Size([4, 1])
    """

    def __init__(
        self,
        encoder: TensorDictModuleBase,
        dynamics: TensorDictModuleBase,
        reward_head: TensorDictModuleBase,
        *,
        done_head: TensorDictModuleBase | None = None,
        decoder: TensorDictModuleBase | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        heads = [part for part in (reward_head, done_head, decoder) if part is not None]
        self.step_module = TensorDictSequential(dynamics, *heads)
        """Dynamics and heads, without the encoder."""
        both = TensorDictSequential(encoder, self.step_module)
        self.in_keys: list[Any] = both.in_keys
        self.out_keys: list[Any] = both.out_keys

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Encode the observation, and take one step."""
        return self.step_module(self.encoder(tensordict))

    def encode(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the latent state of an observation."""
        return self.encoder(tensordict)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the next latent state, and what the heads predict of it; an environment's step in imagination."""
        return self.step_module(tensordict)

    def decode(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the observation of a latent state.

        Raises:
            UnsupportedError: If there is no decoder.
        """
        if self.decoder is None:
            raise UnsupportedError("WorldModel has no decoder: pass decoder=")
        return self.decoder(tensordict)


class WorldModelWrapper(TensorDictSequential):
    """World model of a transition model and a reward model.

    Args:
        transition_model: Module from a state of the world and an action to the next state.
        reward_model: Module from a state of the world to its reward.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> model = WorldModelWrapper(
        ...     TensorDictModule(nn.Linear(3, 3), ["state"], ["state"]),
        ...     TensorDictModule(nn.Linear(3, 1), ["state"], ["reward"]),
        ... )
        >>> model.get_reward_operator().out_keys
        ['reward']
    """

    def __init__(self, transition_model: TensorDictModuleBase, reward_model: TensorDictModuleBase) -> None:
        super().__init__(transition_model, reward_model)

    def get_transition_model_operator(self) -> TensorDictModuleBase:
        """Return the transition model."""
        return self[0]  # pyright: ignore[reportReturnType]

    def get_reward_operator(self) -> TensorDictModuleBase:
        """Return the reward model."""
        return self[1]  # pyright: ignore[reportReturnType]


class _MemberLinear(StackedLinear):
    """One linear layer of each member, with the initial weights of PETS."""

    def reset_parameters(self) -> None:
        """Draw initial weights: normal with ``1 / (2 sqrt(in))``, cut at two standard deviations; biases are 0."""
        std = 0.5 / math.sqrt(self.in_features)
        nn.init.trunc_normal_(self.weight, std=std, a=-2 * std, b=2 * std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class EnsembleDynamics(TensorDictModuleBase):
    """Ensemble of probabilistic networks of the change of the observation and of the reward.

    Chua et al., "Deep reinforcement learning in a handful of trials using probabilistic dynamics models", 2018; Janner
    et al., "When to trust your model: model-based policy optimization", 2019. Each member predicts mean and variance of
    normal distributions; a prediction samples one of the elites for each row, then its distribution.

    Reads ``observation`` ``[*B, o]`` and ``action`` ``[*B, a]``; writes ``("next", "observation")`` and
    ``("next", "reward")`` ``[*B, 1]``. `rl.objectives.WorldModelLoss` with ``losses=["likelihood"]`` trains it.

    Args:
        observation_dim: Width of the observation.
        action_dim: Width of the action.
        num_members: Number of networks.
        num_elites: Number of networks that predict.
        num_cells: Widths of the hidden layers.
        bound_weight: Weight of the penalty on the width of the learned bounds of the variances.
        observation_key: Key of the observation.
        action_key: Key of the action.
        reward_key: Key of the reward, below ``next``.

    Attributes:
        elites: Indices of the networks that predict, ``[num_elites]``.

    Raises:
        ArgumentError: If there are more elites than members.

    Example:
        >>> from tensordict import TensorDict
        >>> model = EnsembleDynamics(3, 1, num_members=4, num_elites=2, num_cells=[8])
        >>> td = TensorDict(observation=torch.zeros(5, 3), action=torch.zeros(5, 1), batch_size=[5])
        >>> model(td)["next", "reward"].shape
        torch.Size([5, 1])
    """

    elites: Tensor
    input_mean: Tensor
    input_std: Tensor

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        *,
        num_members: int = 7,
        num_elites: int = 5,
        num_cells: Sequence[int] = (200, 200, 200, 200),
        bound_weight: float = 0.01,
        observation_key: NestedKey = "observation",
        action_key: NestedKey = "action",
        reward_key: NestedKey = "reward",
    ) -> None:
        super().__init__()
        owner = "EnsembleDynamics"
        self.num_members = as_integer(num_members, owner, "num_members", least=1)
        if as_integer(num_elites, owner, "num_elites", least=1) > num_members:
            raise ArgumentError(f"{owner}: {num_elites} elites of {num_members} members: pass fewer elites")
        self.bound_weight = as_number(bound_weight, owner, "bound_weight", least=0)
        self.in_keys: list[Any] = [unwrap(observation_key), unwrap(action_key)]
        self.out_keys: list[Any] = [next_key(observation_key), next_key(reward_key)]
        width, outputs = observation_dim + action_dim, observation_dim + 1
        layers: list[nn.Module] = []
        for cells in num_cells:
            layers += [_MemberLinear(num_members, width, cells), nn.SiLU()]
            width = cells
        self.net = nn.Sequential(*layers, _MemberLinear(num_members, width, 2 * outputs))
        self.min_log_var = nn.Parameter(torch.full((outputs,), -10.0))
        self.max_log_var = nn.Parameter(torch.full((outputs,), 0.5))
        self.register_buffer("elites", torch.arange(num_elites))
        self.register_buffer("input_mean", torch.zeros(observation_dim + action_dim))
        self.register_buffer("input_std", torch.ones(observation_dim + action_dim))

    @torch.no_grad()
    def fit_inputs(self, tensordict: TensorDictBase) -> None:
        """Normalize inputs by mean and standard deviation of a batch ``[*B]``."""
        x = self._inputs(tensordict).flatten(0, -2)
        std, mean = torch.std_mean(x, 0, correction=0)
        self.input_mean.copy_(mean)
        self.input_std.copy_(std.where(std > 1e-8, 1.0))

    def _inputs(self, td: TensorDictBase) -> Tensor:
        return torch.cat([td.get(key) for key in self.in_keys], -1)

    def predict(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Return means and log-variances of change and reward of all members, ``[n, *B, o + 1]``."""
        x = (self._inputs(tensordict) - self.input_mean) / self.input_std
        flat = x.reshape(-1, x.shape[-1]).expand(self.num_members, -1, -1)
        mean, raw = self.net(flat).unflatten(1, x.shape[:-1]).chunk(2, -1)
        # Soft bounds, so that the variance neither vanishes nor explodes where there are no data.
        raw = self.max_log_var - F.softplus(self.max_log_var - raw)
        return mean, self.min_log_var + F.softplus(raw - self.min_log_var)

    def _targets(self, td: TensorDictBase) -> Tensor:
        observation, after, reward = td.get(self.in_keys[0]), td.get(self.out_keys[0]), td.get(self.out_keys[1])
        if reward.shape != (*observation.shape[:-1], 1):
            raise ShapeError(f"EnsembleDynamics: the reward is {list(reward.shape)}, expected [*B, 1]")
        return torch.cat((after - observation, reward), -1)

    def log_likelihood(self, tensordict: TensorDictBase) -> Tensor:
        """Return the log-likelihood of the outcomes of a batch ``[*B]``, the mean of all members, up to a constant.

        The penalty on the bounds of the variances is subtracted. Members differ by their initial weights and by the
        batches: to give each its own rows, repeat the batch and mask it outside.
        """
        mean, log_var = self.predict(tensordict)
        error = (mean - self._targets(tensordict)).square() * (-log_var).exp() + log_var
        penalty = self.bound_weight * (self.max_log_var - self.min_log_var).sum()
        return -error.mean(-1).mean(0) - penalty

    @torch.no_grad()
    def set_elites(self, tensordict: TensorDictBase) -> Tensor:
        """Let the members predict that have the smallest squared error on a batch, and return the errors, ``[n]``."""
        error = (self.predict(tensordict)[0] - self._targets(tensordict)).square().flatten(1).mean(1)
        self.elites.copy_(error.argsort()[: len(self.elites)])
        return error

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write a sample of the next observation and of the reward."""
        mean, log_var = self.predict(tensordict)
        batch = mean.shape[1:-1]
        chosen = self.elites[torch.randint(len(self.elites), batch, device=mean.device)]
        index = chosen.unsqueeze(0).unsqueeze(-1).expand(1, *mean.shape[1:])
        mean, std = mean.gather(0, index)[0], (0.5 * log_var.gather(0, index)[0]).exp()
        change, reward = torch.addcmul(mean, std, torch.randn_like(std)).split([mean.shape[-1] - 1, 1], -1)
        tensordict.set(self.out_keys[0], tensordict.get(self.in_keys[0]) + change)
        return tensordict.set(self.out_keys[1], reward)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Take one step, as an environment does."""
        return self(tensordict)
