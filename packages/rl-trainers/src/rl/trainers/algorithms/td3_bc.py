"""TD3+BC: TD3 with behaviour cloning on a data set, for bounded continuous actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.config import DISCOUNTS, above, at_least, in_range
from rl.trainers.families import OfflineConfig


@dataclass(frozen=True, kw_only=True)
class TD3BCConfig(OfflineConfig):
    """TD3 with behaviour cloning; bounded continuous actions.

    Fujimoto and Gu, "A minimalist approach to offline reinforcement learning", 2021.

    Args:
        alpha: Weight of the values against imitation.
        policy_noise: Standard deviation of the noise on target actions, in half widths of their bounds.
        noise_clip: Bound of that noise.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> TD3BCConfig(dataset="minari:pendulum/medium-v0").recipe
        'td3-bc'
    """

    recipe: ClassVar[str] = "td3-bc"

    gamma: float = in_range(0, 1, 0.99, search=DISCOUNTS)
    alpha: float = above(0, 2.5, search="0.5..10:log")
    policy_noise: float = at_least(0, 0.2)
    noise_clip: float = at_least(0, 0.5)


def policy(config: OfflineConfig, env: Any) -> Any:
    """Create the untrained deterministic policy.

    Raises:
        SpecError: If the environment's action is no vector of bounded floats.
    """
    from rl.trainers.actors import deterministic_actor

    return deterministic_actor(config, env)


def loss(config: TD3BCConfig, env: Any, policy: Any) -> Any:
    """Create the loss, with its critics; noise is in half widths of the bounds."""
    from rl.objectives import TD3BCLoss
    from rl.trainers.actors import bounded_action, critic

    _, spec = bounded_action(config, env)
    half = (spec.high - spec.low) / 2
    return TD3BCLoss(
        policy,
        critic(config, env),
        alpha=config.alpha,
        action_spec=spec,
        policy_noise=config.policy_noise * half,
        noise_clip=config.noise_clip * half,
        loss_function="l2",
        gamma=config.gamma,
    )


TD3_BC = Algorithm(
    TD3BCConfig,
    loop="offline",
    policy=policy,
    loss=loss,
    outputs={"loss_critic": "loss_qvalue", "loss_actor": "loss_actor", "loss_bc": "bc_loss", "q_value": "pred_value"},
    presets="rl.trainers:presets/td3_bc.yaml:td3-bc",
)

train_td3_bc = TD3_BC.train
