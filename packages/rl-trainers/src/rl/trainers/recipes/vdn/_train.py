"""The recipe ``vdn``: value decomposition."""

from __future__ import annotations

from typing import Any

from tensordict.nn import TensorDictSequential

from rl.core.interfaces import Env
from rl.modules import VDNMixer
from rl.objectives import QMixerLoss
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.multi_agent._networks import Group
from rl.trainers.recipes.qmix._train import qmix_policy, team_loss, train_team
from rl.trainers.recipes.vdn._config import VDN, VDNConfig

__all__ = ["train_vdn", "vdn_policy"]

vdn_policy = qmix_policy


def train_vdn(config: VDNConfig, **options: Any) -> TrainResult:
    """Train teams with value decomposition.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Raises:
        SpecError: if the environment has no group of agents, or actions that are not discrete.
    """
    return train_team(VDN, config, _loss, **options)


def _loss(config: VDNConfig, env: Env, group: Group, policy: TensorDictSequential) -> QMixerLoss:
    return team_loss(config, env, group, policy, VDNMixer(group.n_agents), [])
