"""Dreamer and DreamerV3: actor and critic learn in the imagination of a world model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.config import above, at_least, one_of
from rl.trainers.families import WorldModelConfig

SIZES = ("tiny", "1M", "12M", "25M", "50M", "100M", "200M", "400M")


@dataclass(frozen=True, kw_only=True)
class DreamerV3Config(WorldModelConfig):
    """DreamerV3: vectors or an image, one choice or bounded continuous actions.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025. Defaults are those of the paper,
    in the size tiny, which trains on a CPU.

    Args:
        size: Size of the model: 1M, 12M, 25M, 50M, 100M, 200M or 400M parameters as published, or tiny.
        horizon: Number of imagined steps.
        entropy_coeff: Weight of the entropy of the policy.
        learning_rate: Learning rate of LaProp.
        warmup: Number of gradient steps in which the learning rate rises.
        max_grad_norm: Always 0: LaProp clips the gradient of each tensor at 0.3 of the norm of its weight.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> DreamerV3Config(train_ratio=512).replay_rates
        (0.5, 512.0)
    """

    recipe: ClassVar[str] = "dreamer-v3"
    absent: ClassVar[tuple[str, ...]] = (*WorldModelConfig.absent, "max_grad_norm", "warmup_frames")

    gamma: float = 1 - 1 / 333
    size: str = one_of(SIZES, "tiny")
    horizon: int = above(0, 15)
    entropy_coeff: float = at_least(0, 3e-4, search="1e-5..1e-2:log")
    learning_rate: float = above(0, 4e-5, search="1e-5..1e-3:log")
    warmup: int = at_least(0, 1_000)


@dataclass(frozen=True, kw_only=True)
class DreamerConfig(WorldModelConfig):
    """Dreamer: vectors or an image of 64 x 64, bounded continuous actions, episodes that do not terminate.

    Hafner et al., "Dream to control: learning behaviors by latent imagination", 2020: the gradient of imagined returns
    passes through the model into the actor. Defaults are those of the paper.

    Args:
        state_dim: Width of the stochastic state.
        belief_dim: Width of the recurrent state.
        num_cells: Width of the hidden layers of encoder, decoder and heads.
        horizon: Number of imagined steps.
        learning_rate: Learning rate of Adam, for the model.
        behaviour_learning_rate: Learning rate of Adam, for actor and critic.
        exploration_noise: Standard deviation of the noise on actions, in half widths of their bounds.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> DreamerConfig(env="Pendulum-v1").batch_size
        50
    """

    recipe: ClassVar[str] = "dreamer"

    env: str = "Pendulum-v1"
    batch_size: int = 50
    batch_length: int = 50
    max_grad_norm: float = 100.0
    state_dim: int = above(0, 30)
    belief_dim: int = above(0, 200)
    num_cells: int = above(0, 400)
    horizon: int = above(0, 15)
    learning_rate: float = above(0, 6e-4, search="1e-5..1e-2:log")
    behaviour_learning_rate: float = above(0, 8e-5, search="1e-5..1e-2:log")
    exploration_noise: float = at_least(0, 0.3, search="0.05..0.5:log")


def dreamer_v3_policy(config: DreamerV3Config, env: Any) -> Any:
    """Create the untrained policy, which carries the latent state of the world model.

    Raises:
        SpecError: If the action is neither one choice nor a vector of bounded floats, or an image does not fit.
    """
    from rl.trainers import dreamers

    return dreamers.dreamer_v3_policy(config, env)


def dreamer_v3_loss(config: DreamerV3Config, env: Any, policy: Any) -> Any:
    """Create the losses, with decoders, heads and critic."""
    from rl.trainers.dreamers import DreamerV3Losses

    del env
    return DreamerV3Losses(config, policy)


def dreamer_policy(config: DreamerConfig, env: Any) -> Any:
    """Create the untrained policy, which carries the latent state of the world model.

    Raises:
        SpecError: If the action is no vector of bounded floats, or the observation is neither a vector nor an image of
            64 x 64.
    """
    from rl.trainers import dreamers

    return dreamers.dreamer_policy(config, env)


def dreamer_loss(config: DreamerConfig, env: Any, policy: Any) -> Any:
    """Create the losses, with decoder, reward and critic."""
    from rl.trainers.dreamers import DreamerLosses

    del env
    return DreamerLosses(config, policy)


DREAMER_V3 = Algorithm(
    DreamerV3Config,
    loop="world_model",
    policy=dreamer_v3_policy,
    loss=dreamer_v3_loss,
    presets="rl.trainers:presets/dreamer.yaml:dreamer-v3",
)

DREAMER = Algorithm(
    DreamerConfig,
    loop="world_model",
    policy=dreamer_policy,
    loss=dreamer_loss,
    presets="rl.trainers:presets/dreamer.yaml:dreamer",
)

train_dreamer_v3, train_dreamer = DREAMER_V3.train, DREAMER.train
