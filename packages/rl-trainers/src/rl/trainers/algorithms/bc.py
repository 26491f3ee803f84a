"""Behaviour cloning: a policy that imitates the actions of a data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.families import OfflineConfig


@dataclass(frozen=True, kw_only=True)
class BCConfig(OfflineConfig):
    """Behaviour cloning: a policy that imitates the actions of a data set; discrete actions and bounded floats.

    Pomerleau, "ALVINN: An autonomous land vehicle in a neural network", 1989.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> BCConfig(dataset="minari:pendulum/medium-v0").recipe
        'bc'
    """

    recipe: ClassVar[str] = "bc"


def policy(config: BCConfig, env: Any) -> Any:
    """Create the untrained policy: deterministic for bounded floats, else a distribution.

    Raises:
        SpecError: If the environment's action is of another kind.
    """
    import torch

    from rl.core.specs import Bounded
    from rl.trainers.actors import categorical_actor, deterministic_actor
    from rl.trainers.networks import action_of

    _, spec = action_of(env)
    if type(spec) is Bounded and spec.dtype in (torch.float32, torch.float64):
        return deterministic_actor(config, env)
    return categorical_actor(config, env)


def loss(config: BCConfig, env: Any, policy: Any) -> Any:
    """Create the loss."""
    from rl.objectives import BCLoss

    del config, env
    return BCLoss(policy)


BC = Algorithm(
    BCConfig,
    loop="offline",
    policy=policy,
    loss=loss,
    outputs={"loss_bc": "loss_bc"},
    presets="rl.trainers:presets/bc.yaml:bc",
)

train_bc = BC.train
