"""TD-MPC2: planning in a latent space, with a critic and a policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.config import Rule, above, at_least, checked, in_range, one_of, where
from rl.trainers.families import WorldModelConfig

_AT_MOST_ALL = where(lambda n, config: n <= config.num_candidates, "at most num_candidates ({num_candidates})")


@dataclass(frozen=True, kw_only=True)
class TDMPC2Config(WorldModelConfig):
    """TD-MPC2: vectors, bounded continuous actions.

    Hansen et al., "TD-MPC2: scalable, robust world models for continuous control", 2024. Defaults are those of the
    paper, in its size of 5 million parameters.

    Args:
        gamma: Discount of the return, per step; in the paper ``1 - 5 / T`` for episodes of T steps, within 0.95 and
            0.995.
        size: Size of the model: 1M, 5M, 19M, 48M or 317M parameters as published, or tiny.
        learning_starts: Number of frames with random actions before the first update, which as many updates follow as
            these frames are worth; in the paper five episodes.
        batch_length: Number of steps that the model is unrolled in a gradient step.
        learning_rate: Learning rate of Adam; 0.3 of it for the encoder.
        entropy_coeff: Weight of the entropy of the policy network.
        tau: Share by which the target critics move towards the trained ones after each gradient step.
        planning_horizon: Number of actions of a plan.
        num_candidates: Number of plans of an iteration of the planner.
        num_elites: Number of the best plans, which are averaged.
        num_policy_plans: Number of plans that follow the policy network.
        optim_steps: Number of iterations of the planner; 0 for 6, and 8 for 20 or more dimensions of the action.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> TDMPC2Config(env="Pendulum-v1").num_candidates
        512
    """

    recipe: ClassVar[str] = "tdmpc2"

    env: str = "Pendulum-v1"
    size: str = one_of(("tiny", "1M", "5M", "19M", "48M", "317M"), "5M")
    batch_size: int = checked(256, search="128,256,512")
    batch_length: int = checked(3, Rule(lambda n: n > 0, "above 0"))
    buffer_size: int = 1_000_000
    learning_rate: float = above(0, 3e-4, search="1e-5..1e-2:log")
    max_grad_norm: float = 20.0
    entropy_coeff: float = at_least(0, 1e-4, search="1e-6..1e-2:log")
    tau: float = in_range(0, 1, 0.01, search="0.001..0.1:log")
    planning_horizon: int = above(0, 3)
    num_candidates: int = above(0, 512)
    num_elites: int = above(0, 64, _AT_MOST_ALL)
    num_policy_plans: int = at_least(0, 24, _AT_MOST_ALL)
    optim_steps: int = at_least(0, 0)


def policy(config: TDMPC2Config, env: Any) -> Any:
    """Create the untrained policy, which plans and carries its plan.

    Raises:
        SpecError: If the action is no vector of bounded floats, or an observation is an image.
    """
    from rl.trainers.tdmpc2_parts import tdmpc2_policy

    return tdmpc2_policy(config, env)


def loss(config: TDMPC2Config, env: Any, policy: Any) -> Any:
    """Create the losses, with target critics."""
    from rl.trainers.tdmpc2_parts import TDMPC2Losses

    del env
    return TDMPC2Losses(config, policy)


TDMPC2 = Algorithm(
    TDMPC2Config, loop="world_model", policy=policy, loss=loss, presets="rl.trainers:presets/tdmpc2.yaml:tdmpc2"
)

train_tdmpc2 = TDMPC2.train
