"""The recipe ``c51``: distributional deep Q-learning with fixed atoms, in the loop of `q_learning`."""

from __future__ import annotations

from typing import Any

import torch
from tensordict.nn import TensorDictModule

from rl.core.interfaces import Env
from rl.core.keys import ACTION_VALUE
from rl.modules import DistributionalQValueActor, QValueActor
from rl.objectives import DistributionalDQNLoss
from rl.trainers._build.actions import single_choice
from rl.trainers._build.legal_actions import mask_key
from rl.trainers._build.networks import observations_of
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.c51._config import C51, C51Config
from rl.trainers.recipes.q_learning._networks import value_network
from rl.trainers.recipes.q_learning._train import train_q_learning

__all__ = ["c51_loss", "c51_policy", "train_c51"]


def train_c51(config: C51Config, **options: Any) -> TrainResult:
    """Train with distributional deep Q-learning.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Example:
        >>> import tempfile
        >>> config = C51Config(total_frames=256, learning_starts=128, frames_per_batch=128, updates_per_step=0.02,
        ...                    eval_episodes=1, final_eval_episodes=1, loggers=("csv",))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train_c51(config, out=f"{folder}/run", display="none").train_frames
        256
    """
    return train_q_learning(C51, config, c51_policy, c51_loss, **options)


def c51_policy(config: C51Config, env: Env) -> QValueActor:
    """The untrained greedy policy: reads observations, writes log-probabilities of the atoms and ``action``.

    Raises:
        SpecError: if the environment's action is not one choice of several.
    """
    spec = single_choice(env, config.recipe)
    net = value_network(config, env, (config.atoms, int(spec.n)), (config.atoms, 1))
    module = TensorDictModule(net, in_keys=list(observations_of(env)), out_keys=[ACTION_VALUE])
    support = torch.linspace(config.v_min, config.v_max, config.atoms, device=config.device)
    return DistributionalQValueActor(module, spec=spec, support=support, action_mask_key=mask_key(env))


def c51_loss(config: C51Config, policy: QValueActor) -> DistributionalDQNLoss:
    """The loss, with the support of the policy."""
    return DistributionalDQNLoss(policy, delay_value=True, double_dqn=config.double, gamma=config.gamma)
