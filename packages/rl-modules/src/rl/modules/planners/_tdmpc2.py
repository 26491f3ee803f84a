"""Planner of TD-MPC2: path integral control in a latent space, with plans of the policy among the candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rl.core.arguments import as_integer, as_number
from rl.core.errors import ArgumentError
from rl.core.keys import ACTION, NestedKey, next_key, unwrap
from rl.core.mdp import ExplorationType, exploration_type
from rl.modules.planners._mpc import PLAN, PlanCarrier, best, weighted_moments


class TDMPC2Planner(PlanCarrier):
    """Policy that plans in the world model of TD-MPC2.

    Hansen et al., "TD-MPC2: scalable, robust world models for continuous control", 2024, algorithm 1 and appendix. The
    search starts from the plan of the step before; `num_policy_plans` of the candidates follow the policy network. A
    candidate's score is its discounted rewards, and the mean value of two random critics of the state it reaches.
    Actions are in [-1, 1]. All environments of a batch are planned at once.

    Reads the inputs of the encoder and ``plan`` ``[*B, horizon, a]``, writes the action and ``("next", "plan")``. With
    deterministic exploration it takes the best candidate; otherwise it draws one of the elites, and adds noise.

    Args:
        encoder: Module from observations to ``latent``.
        dynamics: Module from ``latent`` and action to ``("next", "latent")``.
        reward_model: Head of the reward on latent state and action, with ``get_dist``.
        qvalue_network: Heads of the value on latent state and action, with ``get_dist``; at least two.
        actor_network: Policy on latent states, with ``get_dist``.
        action_dim: Width of the action.
        terminated_model: Head of the termination on latent states, with ``get_dist``; None if no episode terminates.
        planning_horizon: Number of actions of a plan.
        num_candidates: Number of plans of an iteration, those of the policy included.
        num_elites: Number of the best plans, which are averaged.
        num_policy_plans: Number of plans of the policy network.
        optim_steps: Number of iterations; 6, and 8 for 20 or more action dimensions if None.
        temperature: Factor of scores in the exponent of the weights.
        min_std: Least standard deviation of candidates.
        max_std: Largest standard deviation of candidates, which the search starts with.
        gamma: Discount of `TDMPC2Loss`.
        latent_key: Key of the latent state.
        action_key: Key of the action.

    Raises:
        ArgumentError: If an argument is out of its range.
    """

    def __init__(  # noqa: PLR0913 - the settings of the paper
        self,
        encoder: nn.Module,
        dynamics: nn.Module,
        reward_model: nn.Module,
        qvalue_network: Sequence[nn.Module],
        actor_network: nn.Module,
        action_dim: int,
        *,
        terminated_model: nn.Module | None = None,
        planning_horizon: int = 3,
        num_candidates: int = 512,
        num_elites: int = 64,
        num_policy_plans: int = 24,
        optim_steps: int | None = None,
        temperature: float = 0.5,
        min_std: float = 0.05,
        max_std: float = 2.0,
        gamma: float = 0.99,
        latent_key: NestedKey = "latent",
        action_key: NestedKey = ACTION,
    ) -> None:
        owner = str(type(self).__name__)
        action_dim = as_integer(action_dim, owner, "action_dim", least=1)
        super().__init__(planning_horizon, (action_dim,), action_key)
        self.encoder, self.dynamics, self.reward_model = encoder, dynamics, reward_model
        self.qvalue_network = nn.ModuleList(qvalue_network)
        if len(self.qvalue_network) < 2:
            raise ArgumentError(f"{owner} averages two random critics, got {len(self.qvalue_network)}")
        self.actor_network, self.terminated_model = actor_network, terminated_model
        self.num_candidates = as_integer(num_candidates, owner, "num_candidates", least=1)
        self.num_elites = as_integer(num_elites, owner, "num_elites", least=1)
        self.num_policy_plans = as_integer(num_policy_plans, owner, "num_policy_plans", least=0)
        if max(self.num_elites, self.num_policy_plans) > self.num_candidates:
            raise ArgumentError(f"{owner}: more elites or plans of the policy than num_candidates={num_candidates}")
        self.optim_steps = (
            (8 if action_dim >= 20 else 6)
            if optim_steps is None
            else as_integer(optim_steps, owner, "optim_steps", least=1)
        )
        self.temperature = as_number(temperature, owner, "temperature", least=0)
        self.min_std = as_number(min_std, owner, "min_std", least=0)
        self.max_std = as_number(max_std, owner, "max_std", least=self.min_std)
        self.gamma = as_number(gamma, owner, "gamma", least=0, most=1)
        self.latent_key = unwrap(latent_key)
        observed: Any = encoder.in_keys
        self.in_keys: list[Any] = [*map(unwrap, observed), PLAN]
        self.out_keys: list[Any] = [self.action_key, next_key(PLAN)]

    def _td(self, latent: Tensor, action: Tensor | None = None) -> TensorDict:
        td = TensorDict({}, batch_size=latent.shape[:-1])
        td.set(self.latent_key, latent)
        return td if action is None else td.set(self.action_key, action)

    def _act(self, latent: Tensor) -> Tensor:
        policy: Any = self.actor_network
        return policy.get_dist(self._td(latent)).sample()

    def _next(self, latent: Tensor, action: Tensor) -> Tensor:
        return self.dynamics(self._td(latent, action)).get(next_key(self.latent_key))

    def score(self, latent: Tensor, actions: Tensor) -> Tensor:
        """Return the predicted return ``[*B, n]`` of plans ``[*B, n, T, a]`` from latent states ``[*B, n, z]``."""
        reward_model: Any = self.reward_model
        chosen = torch.randperm(len(self.qvalue_network))[:2].tolist()
        critics: list[Any] = [self.qvalue_network[index] for index in chosen]
        total, discount = torch.zeros_like(latent[..., 0]), 1.0
        live = torch.ones_like(total)
        for action in actions.unbind(-2):
            reward = reward_model.get_dist(self._td(latent, action)).mean.squeeze(-1)
            total = total + discount * live * reward
            latent = self._next(latent, action)
            discount *= self.gamma
            if self.terminated_model is not None:
                end: Any = self.terminated_model
                live = live * (end.get_dist(self._td(latent)).mean.reshape(live.shape) <= 0.5)
        after = self._td(latent, self._act(latent))
        value = torch.stack([critic.get_dist(after.copy()).mean.squeeze(-1) for critic in critics]).mean(0)
        return (total + discount * live * value).nan_to_num(0.0)

    def _policy_plans(self, latent: Tensor) -> Tensor:
        """Return plans of the policy network, ``[*B, num_policy_plans, T, a]``."""
        latent = latent.unsqueeze(-2).expand(*latent.shape[:-1], self.num_policy_plans, -1)
        actions: list[Tensor] = []
        for step in range(self.planning_horizon):
            actions.append(self._act(latent))
            if step < self.planning_horizon - 1:
                latent = self._next(latent, actions[-1])
        return torch.stack(actions, -2)

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the first action of a plan, and the plan."""
        latent: Tensor = self.encoder(tensordict.copy()).get(self.latent_key)
        mean = self.start(tensordict, latent)
        std = torch.full_like(mean, self.max_std)
        fixed = self._policy_plans(latent) if self.num_policy_plans else mean.unsqueeze(-3)[..., :0, :, :]
        many = latent.unsqueeze(-2).expand(*latent.shape[:-1], self.num_candidates, -1)
        size = (*mean.shape[:-2], self.num_candidates - self.num_policy_plans, *mean.shape[-2:])
        elites, scores = fixed, many
        for _ in range(self.optim_steps):
            noise = torch.randn(size, dtype=mean.dtype, device=mean.device)
            drawn = torch.addcmul(mean.unsqueeze(-3), std.unsqueeze(-3), noise).clamp(-1, 1)
            actions = torch.cat((fixed, drawn), -3)
            elites, scores = best(actions, self.score(many, actions), self.num_elites)
            mean, std = weighted_moments(elites, self.temperature * scores)
            std = std.clamp(self.min_std, self.max_std)
        tensordict.set(self.action_key, self._choose(elites[..., 0, :], scores, std[..., 0, :]))
        return tensordict.set(next_key(PLAN), mean)

    def _choose(self, actions: Tensor, scores: Tensor, std: Tensor) -> Tensor:
        """Return the first action of one of the elites ``[*B, k, a]``, whose scores are in descending order."""
        if exploration_type() is ExplorationType.DETERMINISTIC:
            return actions[..., 0, :]
        weight = (self.temperature * scores).softmax(-1)
        index = torch.multinomial(weight.reshape(-1, weight.shape[-1]), 1).reshape(*weight.shape[:-1], 1, 1)
        chosen = actions.gather(-2, index.expand(*index.shape[:-1], actions.shape[-1])).squeeze(-2)
        return torch.addcmul(chosen, std, torch.randn_like(std)).clamp(-1, 1)
