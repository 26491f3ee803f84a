"""DDPG and TD3: deterministic policy gradients, for bounded continuous actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.config import above, at_least
from rl.trainers.families import DeterministicConfig


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(DeterministicConfig):
    """Deep deterministic policy gradient; bounded continuous actions only.

    Lillicrap et al., "Continuous control with deep reinforcement learning", 2016.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> DDPGConfig(env="Pendulum-v1").tau
        0.005
    """

    recipe: ClassVar[str] = "ddpg"


@dataclass(frozen=True, kw_only=True)
class TD3Config(DeterministicConfig):
    """Twin delayed deep deterministic policy gradient; bounded continuous actions only.

    Fujimoto et al., "Addressing function approximation error in actor-critic methods", 2018.

    Args:
        policy_noise: Standard deviation of the noise on target actions, in half widths of their bounds.
        noise_clip: Largest noise on target actions, in the same unit.
        policy_delay: Number of gradient steps of the critics for each of the actor and the target networks (algorithm
            1).

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> TD3Config(env="Pendulum-v1").tau
        0.005
    """

    recipe: ClassVar[str] = "td3"
    policy_noise: float = at_least(0, 0.2, search="0.1..0.5")
    noise_clip: float = at_least(0, 0.5)
    policy_delay: int = above(0, 2)


def policy(config: DeterministicConfig, env: Any) -> Any:
    """Create the untrained deterministic policy.

    Raises:
        SpecError: If the environment's action is no vector of bounded floats.
    """
    from rl.trainers.actors import deterministic_actor

    return deterministic_actor(config, env)


def noise(config: DeterministicConfig, env: Any) -> Any:
    """Create the noise on the actions of training."""
    from rl.trainers.actors import exploration_noise

    return exploration_noise(config, env)


def ddpg_loss(config: DDPGConfig, env: Any, policy: Any) -> Any:
    """Create the loss, with its critic."""
    from rl.objectives import DDPGLoss
    from rl.trainers.actors import critic

    return DDPGLoss(policy, critic(config, env), gamma=config.gamma)


def td3_loss(config: TD3Config, env: Any, policy: Any) -> Any:
    """Create the loss, with its critics; noise is in half widths of the bounds."""
    from rl.objectives import TD3Loss
    from rl.trainers.actors import bounded_action, critic

    _, spec = bounded_action(config, env)
    half = (spec.high - spec.low) / 2
    return TD3Loss(
        policy,
        critic(config, env),
        action_spec=spec,
        policy_noise=config.policy_noise * half,
        noise_clip=config.noise_clip * half,
        loss_function="l2",
        gamma=config.gamma,
    )


DDPG = Algorithm(
    DDPGConfig,
    loop="off_policy",
    policy=policy,
    loss=ddpg_loss,
    explore=noise,
    presets="rl.trainers:presets/td3.yaml:ddpg",
)
TD3 = Algorithm(
    TD3Config,
    loop="off_policy",
    policy=policy,
    loss=td3_loss,
    explore=noise,
    actor_every="policy_delay",
    presets="rl.trainers:presets/td3.yaml:td3",
)

train_ddpg, train_td3 = DDPG.train, TD3.train
