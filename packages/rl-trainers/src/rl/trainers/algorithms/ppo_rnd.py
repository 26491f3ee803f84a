"""PPO with random network distillation: intrinsic rewards for states that are new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.algorithms.ppo import PPOConfig, policy
from rl.trainers.config import above, at_least, in_range


@dataclass(frozen=True, kw_only=True)
class PPORNDConfig(PPOConfig):
    """PPO with an intrinsic reward for states that are new, for tasks whose rewards are rare.

    Burda et al., "Exploration by random network distillation", 2018: the intrinsic reward of a step is the error with
    which a network predicts the output of a fixed random one for the observation that the step reached. A second
    critic estimates its returns, which continue over the ends of episodes; advantages of both rewards are added up.
    The second critic, the predictor and the random network have no memory, also for a recurrent policy.

    Args:
        extrinsic_weight: Weight of the advantages of the environment's rewards.
        intrinsic_weight: Weight of the advantages of the intrinsic rewards.
        intrinsic_gamma: Discount of the intrinsic return, per step.
        features: Width of the output of the random network.
        predictor_learning_rate: Learning rate of Adam for the predictor; constant.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> PPORNDConfig(env="MountainCar-v0").intrinsic_gamma
        0.99
    """

    recipe: ClassVar[str] = "ppo-rnd"
    absent: ClassVar[tuple[str, ...]] = ("learners",)  # whose statistics of observations would differ
    extrinsic_weight: float = at_least(0, 2.0)
    intrinsic_weight: float = above(0, 1.0)
    intrinsic_gamma: float = in_range(0, 1, 0.99)
    features: int = above(0, 64)
    predictor_learning_rate: float = above(0, 1e-4)


def updater(config: PPORNDConfig, env: Any, actor: Any, critic: Any) -> Any:
    """PPO on the sum of extrinsic and intrinsic advantages; each step also trains predictor and intrinsic critic."""
    from rl.trainers.algorithms._intrinsic import RNDUpdater

    return RNDUpdater(config, env, actor, critic)


PPO_RND = Algorithm(
    PPORNDConfig,
    loop="on_policy",
    policy=policy,
    updater=updater,
    presets="rl.trainers:presets/ppo_rnd.yaml:ppo-rnd",
)

train_ppo_rnd = PPO_RND.train
