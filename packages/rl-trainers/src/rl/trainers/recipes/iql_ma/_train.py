"""The recipe ``iql-ma``: independent Q-learning."""

from __future__ import annotations

from typing import Any

from tensordict.nn import TensorDictSequential

from rl.core.interfaces import Env
from rl.objectives import DQNLoss
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.iql_ma._config import IQL_MA, IQLMAConfig
from rl.trainers.recipes.multi_agent._networks import Group
from rl.trainers.recipes.qmix._train import qmix_policy, train_team

__all__ = ["iql_ma_policy", "train_iql_ma"]

iql_ma_policy = qmix_policy


def train_iql_ma(config: IQLMAConfig, **options: Any) -> TrainResult:
    """Train independent agents with Q-learning.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Raises:
        SpecError: if the environment has no group of agents, or actions that are not discrete.
    """
    return train_team(IQL_MA, config, _loss, **options)


def _loss(config: IQLMAConfig, env: Env, group: Group, policy: TensorDictSequential) -> DQNLoss:
    del env
    loss = DQNLoss(policy, loss_function="smooth_l1", double_dqn=config.double, gamma=config.gamma)
    loss.set_keys(**group.loss_keys("action_value", "chosen_action_value", "action"))
    return loss
