"""The recipe ``ippo``: proximal policy optimization of independent agents."""

from __future__ import annotations

from typing import Any

from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.ippo._config import IPPO, IPPOConfig
from rl.trainers.recipes.mappo._train import mappo_policy, train_with

__all__ = ["ippo_policy", "train_ippo"]

ippo_policy = mappo_policy


def train_ippo(config: IPPOConfig, **options: Any) -> TrainResult:
    """Train groups of independent agents with proximal policy optimization.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_ppo`.

    Raises:
        SpecError: if the environment has no groups of agents, or their actions do not fit.
    """
    return train_with(IPPO, config, **options)
