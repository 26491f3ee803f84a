"""Model predictive control: plans are searched in a model of the environment, and their first action is taken."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rl.core import State, load
from rl.core.arguments import as_integer, as_number
from rl.core.errors import ArgumentError, ContractError
from rl.core.keys import ACTION, NEXT, TERMINATED, NestedKey, next_key, unwrap
from rl.core.mdp import FLAGS, step_mdp
from rl.core.specs import Unbounded

PLAN: NestedKey = "plan"
"""Key of the plan of the step before, ``[*B, horizon, a]``, from which the search starts."""


class PlanCarrier(TensorDictModuleBase):
    """Base of planners: the plan is a recurrent state, so that it is stored, resumed and reset with the environment.

    Args:
        horizon: Number of actions of a plan.
        action_shape: Shape of an action; one dimension.
        action_key: Key of the action.
    """

    def __init__(self, horizon: int, action_shape: tuple[int, ...], action_key: NestedKey = ACTION) -> None:
        super().__init__()
        owner = str(type(self).__name__)
        self.planning_horizon = as_integer(horizon, owner, "planning_horizon", least=1)
        if len(action_shape) != 1:
            raise ArgumentError(f"{owner} plans actions of one dimension, got the shape {tuple(action_shape)}")
        self.action_shape = tuple(action_shape)
        self.action_key = unwrap(action_key)

    @property
    def states(self) -> tuple[State, ...]:
        """The plan as a recurrent state: zero before the first step of an episode."""
        return (State(PLAN, (self.planning_horizon, *self.action_shape), owner=str(type(self).__name__)),)

    def make_tensordict_primer(self) -> Any:
        """Return the transform that writes the first plan of an episode, for a loop without a `Collector`.

        Raises:
            UnknownComponentError: If rl-envs is not installed.
        """
        primer = load("transform", "tensordict-primer")
        return primer({state.name: Unbounded(state.shape, dtype=state.dtype) for state in self.states})

    def start(self, tensordict: TensorDictBase, like: Tensor) -> Tensor:
        """Return the plan of the step before without its first action, and 0 at the end, ``[*B, horizon, a]``.

        Without a plan, as in the first step of a loop of one's own, a plan of zeros is written.
        """
        plan: Tensor | None = tensordict.get(PLAN, None)
        if plan is None:
            size = (*tensordict.batch_size, self.planning_horizon, *self.action_shape)
            plan = torch.zeros(size, dtype=like.dtype, device=like.device)
            tensordict.set(PLAN, plan)
        return torch.cat((plan[..., 1:, :], torch.zeros_like(plan[..., :1, :])), -2)


class MPCPlannerBase(PlanCarrier):
    """Base of planners in an environment, which is a model or a simulator that can be stepped from any state.

    A subclass implements `planning`, which returns the plan ``[*B, horizon, a]``. Reads the observations of the
    environment and ``plan``, writes the action and ``("next", "plan")``.

    Args:
        env: Environment, whose ``step(td)`` takes batches of any size.
        planning_horizon: Number of simulated steps.
        action_key: Key of the action.

    Raises:
        ArgumentError: If the environment is locked to a batch size, or an action has not one dimension.
    """

    def __init__(self, env: Any, planning_horizon: int, action_key: NestedKey = ACTION) -> None:
        if getattr(env, "batch_locked", False):
            raise ArgumentError(
                f"{type(self).__name__} simulates many plans at once, and {type(env).__name__} is locked to the batch"
                f" {list(env.batch_size)}: use a model, or an environment that takes any batch"
            )
        spec = env.full_action_spec[action_key]
        super().__init__(planning_horizon, tuple(spec.shape[len(env.batch_size) :]), action_key)
        self.env = env
        self.action_spec = spec
        observed = [unwrap(key) for key in env.observation_spec.keys(True, True)]  # noqa: FBT003 - tensordict's signature
        self.in_keys: list[Any] = [*observed, PLAN]
        self.out_keys: list[Any] = [self.action_key, next_key(PLAN)]

    @abstractmethod
    def planning(self, td: TensorDictBase) -> Tensor:
        """Search a plan.

        Args:
            td: Observations ``[*B]``, and the plan of the step before.

        Returns:
            The plan, ``[*B, horizon, a]``.
        """

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the first action of a plan, and the plan."""
        plan = self.planning(tensordict)
        tensordict.set(self.action_key, self.action_spec.project(plan[..., 0, :]))
        return tensordict.set(next_key(PLAN), plan)

    def simulate(self, tensordict: TensorDictBase, actions: Tensor) -> TensorDictBase:
        """Step the environment from each state with many plans.

        Args:
            tensordict: States, ``[*B]``.
            actions: Plans, ``[*B, n, horizon, a]``.

        Returns:
            The steps, ``[*B, n, horizon]``.
        """
        count = actions.shape[-3]
        size = (*tensordict.batch_size, count)
        td = tensordict.select(*self.in_keys[:-1]).unsqueeze(-1)  # all but the plan
        td = td.expand(*size).clone()
        rows: list[TensorDictBase] = []
        for action in actions.unbind(-2):
            rows.append(self.env.step(td.set(self.action_key, action)))
            td = step_mdp(rows[-1], exclude_done=True, done_keys=[*FLAGS])  # all rows have the keys of the first one
        return TensorDict.stack(rows, -1)

    def sample(self, mean: Tensor, std: Tensor, count: int) -> Tensor:
        """Draw plans around a mean ``[*B, horizon, a]``, inside of the action spec, ``[*B, count, horizon, a]``."""
        noise = torch.randn(*mean.shape[:-2], count, *mean.shape[-2:], dtype=mean.dtype, device=mean.device)
        return self.action_spec.project(torch.addcmul(mean.unsqueeze(-3), std.unsqueeze(-3), noise))


def total_reward(steps: TensorDictBase, reward_key: NestedKey) -> Tensor:
    """Sum the rewards of simulated steps ``[*B, n, T]`` up to the end of the episode, ``[*B, n]``."""
    reward: Tensor = steps.get(reward_key).squeeze(-1)
    terminated: Tensor | None = steps.get((NEXT, TERMINATED), None)
    if terminated is not None:
        ended = terminated.squeeze(-1).cumsum(-1) - terminated.squeeze(-1).to(torch.int64)  # ends before the step
        reward = reward.where(ended == 0, 0)
    return reward.sum(-1)


def best(actions: Tensor, score: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the plans ``[*B, count, T, a]`` with the largest scores, and these, ``[*B, count]``."""
    top, index = score.nan_to_num(nan=-torch.inf).topk(count, -1)
    shape = (*index.shape, *actions.shape[-2:])
    return actions.gather(-3, index.unsqueeze(-1).unsqueeze(-1).expand(shape)), top


class _SearchPlanner(MPCPlannerBase):
    """Planner that draws plans around a mean, and moves it to the best ones, again and again.

    The search starts from the plan of the step before, with standard deviation 1.
    """

    def __init__(
        self,
        env: Any,
        planning_horizon: int,
        optim_steps: int,
        num_candidates: int,
        top_k: int,
        reward_key: NestedKey,
        action_key: NestedKey,
    ) -> None:
        super().__init__(env, planning_horizon, action_key)
        owner = str(type(self).__name__)
        self.optim_steps = as_integer(optim_steps, owner, "optim_steps", least=1)
        self.num_candidates = as_integer(num_candidates, owner, "num_candidates", least=1)
        self.top_k = as_integer(top_k, owner, "top_k", least=1)
        if self.top_k > self.num_candidates:
            raise ArgumentError(f"{owner}: top_k={top_k} of num_candidates={num_candidates}: pass a smaller one")
        self.reward_key = unwrap(reward_key)

    def planning(self, td: TensorDictBase) -> Tensor:
        """Return the mean of the last round."""
        mean = self.start(td, torch.zeros((), dtype=self.action_spec.dtype, device=td.device))
        std = torch.ones_like(mean)
        for _ in range(self.optim_steps):
            actions = self.sample(mean, std, self.num_candidates)
            mean, std = self._fit(*best(actions, self._score(self.simulate(td, actions)), self.top_k))
        return mean

    @abstractmethod
    def _score(self, steps: TensorDictBase) -> Tensor:
        """Return the score of simulated plans ``[*B, n, T]``, ``[*B, n]``."""

    @abstractmethod
    def _fit(self, actions: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation ``[*B, T, a]`` of the best plans ``[*B, k, T, a]``, with their scores."""


class CEMPlanner(_SearchPlanner):
    """Planner of the cross-entropy method: a normal distribution of plans is fitted to the best ones, again and again.

    Botev et al., "The cross-entropy method for optimization", 2013. Each environment of a batch has its own plan. The
    search starts from the plan of the step before, with standard deviation 1.

    Args:
        env: Environment, whose ``step(td)`` takes batches of any size.
        planning_horizon: Number of simulated steps.
        optim_steps: Number of fits.
        num_candidates: Number of plans of a fit.
        top_k: Number of the best plans, which are fitted.
        reward_key: Key of the reward.
        action_key: Key of the action.

    Raises:
        ArgumentError: If an argument is out of its range.
    """

    def __init__(
        self,
        env: Any,
        planning_horizon: int,
        optim_steps: int,
        num_candidates: int,
        top_k: int,
        reward_key: NestedKey = (NEXT, "reward"),
        action_key: NestedKey = ACTION,
    ) -> None:
        super().__init__(env, planning_horizon, optim_steps, num_candidates, top_k, reward_key, action_key)

    def _score(self, steps: TensorDictBase) -> Tensor:
        return total_reward(steps, self.reward_key)

    def _fit(self, actions: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
        del score
        std, mean = torch.std_mean(actions, -3, correction=0)
        return mean, std


class MPPIPlanner(_SearchPlanner):
    """Planner of model predictive path integral control: the best plans are averaged with exponential weights.

    Williams et al., "Model predictive path integral control using covariance variable importance sampling", 2015. The
    score of a plan is the advantage that a value estimator gives its first step.

    Args:
        env: Environment, whose ``step(td)`` takes batches of any size.
        advantage_module: Value estimator, which writes ``advantage`` into steps ``[*B, n, horizon]``.
        temperature: Factor of scores in the exponent: weights are ``exp(temperature * score)``.
        planning_horizon: Number of simulated steps.
        optim_steps: Number of averages.
        num_candidates: Number of plans of an average.
        top_k: Number of the best plans, which are averaged.
        reward_key: Key of the reward.
        action_key: Key of the action.

    Raises:
        ArgumentError: If an argument is out of its range.
    """

    temperature: Tensor

    def __init__(
        self,
        env: Any,
        advantage_module: nn.Module,
        temperature: float,
        planning_horizon: int,
        optim_steps: int,
        num_candidates: int,
        top_k: int,
        reward_key: NestedKey = (NEXT, "reward"),
        action_key: NestedKey = ACTION,
    ) -> None:
        super().__init__(env, planning_horizon, optim_steps, num_candidates, top_k, reward_key, action_key)
        self.advantage_module = advantage_module
        factor = as_number(temperature, str(type(self).__name__), "temperature", least=0)
        self.register_buffer("temperature", torch.tensor(factor))

    def _score(self, steps: TensorDictBase) -> Tensor:
        advantage: Tensor | None = self.advantage_module(steps).get("advantage", None)
        if advantage is None:
            raise ContractError("MPPIPlanner: advantage_module writes no 'advantage': pass a value estimator")
        return advantage[..., 0, 0]

    def _fit(self, actions: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
        return weighted_moments(actions, self.temperature * score)


def weighted_moments(actions: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of plans ``[*B, k, T, a]`` with weights ``exp(score)``, of scores ``[*B, k]``."""
    weight = score.softmax(-1).unsqueeze(-1).unsqueeze(-1)
    mean = (weight * actions).sum(-3)
    return mean, (weight * (actions - mean.unsqueeze(-3)).square()).sum(-3).sqrt()
