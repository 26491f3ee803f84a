"""CEM-MPC: plans of the cross-entropy method in a learned ensemble of the dynamics, of which the first action acts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.config import RunConfig, above, at_least, checked, where
from rl.trainers.families import EnsembleFields


@dataclass(frozen=True, kw_only=True)
class CEMMPCConfig(EnsembleFields, RunConfig):
    """Model predictive control in a learned ensemble; one vector of observations, bounded continuous actions.

    Chua et al., "Deep reinforcement learning in a handful of trials using probabilistic dynamics models", 2018, PETS.
    Nothing but the ensemble is trained. Plans are scored by the sum of predicted rewards, undiscounted; each predicted
    step is that of a random elite.

    Args:
        frames_per_batch: Number of frames collected between two looks whether a fit is due; `num_envs` divides it.
        buffer_size: Number of real steps that the replay buffer keeps.
        learning_starts: Number of frames of random actions, before the first fit.
        planning_horizon: Number of steps of a plan.
        optim_steps: Number of fits of the distribution of plans, for each action.
        num_candidates: Number of plans of a fit.
        top_k: Number of the best plans, which are fitted.
        max_grad_norm: Norm to which gradients of the ensemble are scaled down; 0 leaves them.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> CEMMPCConfig(env="Pendulum-v1").planning_horizon
        20
    """

    recipe: ClassVar[str] = "cem-mpc"
    env: str = "Pendulum-v1"
    total_frames: int = 2_000
    num_envs: int = 1
    frames_per_batch: int = checked(
        50, where(lambda n, config: n > 0 and n % config.num_envs == 0, "a multiple of num_envs ({num_envs})")
    )
    buffer_size: int = checked(
        100_000, where(lambda n, config: n >= config.frames_per_batch, "at least frames_per_batch")
    )
    learning_starts: int = at_least(0, 200)
    planning_horizon: int = above(0, 20, search="5..40")
    optim_steps: int = above(0, 4)
    num_candidates: int = above(0, 100)
    top_k: int = checked(
        10, where(lambda n, config: 0 < n <= config.num_candidates, "above 0, and at most num_candidates")
    )
    max_grad_norm: float = at_least(0, 0.0)
    eval_every: int = 1_000
    eval_episodes: int = 2


def policy(config: CEMMPCConfig, env: Any) -> Any:
    """Create the planner, with the untrained ensemble as ``world_model``.

    Raises:
        SpecError: If the observation is no vector, or the action no vector of bounded floats.
    """
    from rl.modules import CEMPlanner
    from rl.trainers.world_models import ensemble, model_env

    dynamics = ensemble(config, env)
    planner = CEMPlanner(
        model_env(config, env, dynamics),
        config.planning_horizon,
        config.optim_steps,
        config.num_candidates,
        config.top_k,
        action_key=dynamics.in_keys[1],
    )
    planner.world_model = dynamics  # so that it is a part of the policy's state
    return planner


def model(config: CEMMPCConfig, env: Any, policy: Any) -> Any:
    """Return the ensemble of the planner."""
    del config, env
    return policy.world_model


CEM_MPC = Algorithm(
    CEMMPCConfig,
    loop="model_based",
    policy=policy,
    model=model,
    presets="rl.trainers:presets/model_based.yaml:cem-mpc",
)

train_cem_mpc = CEM_MPC.train
