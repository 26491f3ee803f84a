"""The recipe ``bc``: behaviour cloning, in the loop of `offline`."""

from __future__ import annotations

from typing import Any

import torch

from rl.core.interfaces import Env
from rl.core.specs import Bounded
from rl.objectives import BCLoss
from rl.trainers._build.networks import action_of
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.bc._config import BC, BCConfig
from rl.trainers.recipes.off_policy._networks import deterministic_actor
from rl.trainers.recipes.offline._networks import categorical_actor
from rl.trainers.recipes.offline._train import train_offline

__all__ = ["bc_policy", "train_bc"]


def train_bc(config: BCConfig, **options: Any) -> TrainResult:
    """Train a policy that imitates a data set.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Raises:
        SpecError: if there is no data set, or it does not fit the environment.
    """
    return train_offline(BC, config, bc_policy, _loss, {"loss_bc": "loss_bc"}, **options)


def bc_policy(config: Any, env: Env) -> Any:
    """The untrained policy: deterministic for bounded floats, else a distribution.

    Raises:
        SpecError: if the environment's action is of another kind.
    """
    _, spec = action_of(env)
    if type(spec) is Bounded and spec.dtype in (torch.float32, torch.float64):
        return deterministic_actor(config, env)
    return categorical_actor(config, env)


def _loss(config: BCConfig, env: Env, policy: Any) -> BCLoss:
    del config, env
    return BCLoss(policy)
