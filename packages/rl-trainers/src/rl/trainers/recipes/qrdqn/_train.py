"""The recipe ``qrdqn``: distributional deep Q-learning with quantiles, in the loop of `q_learning`."""

from __future__ import annotations

from typing import Any

from tensordict.nn import TensorDictModule

from rl.core.interfaces import Env
from rl.core.keys import ACTION_VALUE
from rl.modules import QuantileQValueActor, QValueActor
from rl.objectives import QRDQNLoss
from rl.trainers._build.actions import single_choice
from rl.trainers._build.legal_actions import mask_key
from rl.trainers._build.networks import observations_of
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.q_learning._networks import value_network
from rl.trainers.recipes.q_learning._train import train_q_learning
from rl.trainers.recipes.qrdqn._config import QRDQN, QRDQNConfig

__all__ = ["qrdqn_loss", "qrdqn_policy", "train_qrdqn"]


def train_qrdqn(config: QRDQNConfig, **options: Any) -> TrainResult:
    """Train with quantile regression.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Example:
        >>> import tempfile
        >>> config = QRDQNConfig(total_frames=256, learning_starts=128, frames_per_batch=128, updates_per_step=0.02,
        ...                      eval_episodes=1, final_eval_episodes=1, loggers=("csv",))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train_qrdqn(config, out=f"{folder}/run", display="none").train_frames
        256
    """
    return train_q_learning(QRDQN, config, qrdqn_policy, qrdqn_loss, **options)


def qrdqn_policy(config: QRDQNConfig, env: Env) -> QValueActor:
    """The untrained greedy policy: reads observations, writes quantiles and ``action``.

    Raises:
        SpecError: if the environment's action is not one choice of several.
    """
    spec = single_choice(env, config.recipe)
    net = value_network(config, env, (int(spec.n), config.quantiles), (1, config.quantiles))
    module = TensorDictModule(net, in_keys=list(observations_of(env)), out_keys=[ACTION_VALUE])
    return QuantileQValueActor(module, spec=spec, action_mask_key=mask_key(env))


def qrdqn_loss(config: QRDQNConfig, policy: QValueActor) -> QRDQNLoss:
    """The loss."""
    return QRDQNLoss(policy, kappa=config.kappa, delay_value=True, double_dqn=config.double, gamma=config.gamma)
