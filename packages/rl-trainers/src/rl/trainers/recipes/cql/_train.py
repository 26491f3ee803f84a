"""The recipe ``cql``: conservative Q-learning, in the loop of `offline`."""

from __future__ import annotations

from typing import Any

from tensordict.nn import TensorDictModule

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import ACTION_VALUE
from rl.modules import ProbabilisticActor, QValueActor
from rl.objectives import CQLLoss, DiscreteCQLLoss
from rl.trainers._build.actions import single_choice
from rl.trainers._build.legal_actions import is_choice, mask_key
from rl.trainers._build.networks import action_of, observations_of
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.cql._config import CQL, CQLConfig
from rl.trainers.recipes.off_policy._networks import body, bounded_action, critic, gaussian_actor
from rl.trainers.recipes.offline._train import train_offline

__all__ = ["cql_policy", "train_cql"]

OUTPUTS = {
    "loss_critic": "loss_qvalue",
    "loss_cql": "loss_cql",
    "loss_actor": "loss_actor",
    "q_value": "pred_value",
    "alpha": "alpha",
    "entropy": "entropy",
}


def train_cql(config: CQLConfig, **options: Any) -> TrainResult:
    """Train on a data set with conservative Q-learning.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Raises:
        SpecError: if there is no data set, or it does not fit the environment.
    """
    return train_offline(CQL, config, cql_policy, _loss, OUTPUTS, before=_imitate, **options)


def cql_policy(config: Any, env: Env) -> ProbabilisticActor | QValueActor:
    """The untrained tanh-normal policy, or for one choice the greedy one of action values.

    Raises:
        SpecError: if the environment's action is neither one choice nor a vector of bounded floats.
    """
    if is_choice(action_of(env)[1]):
        spec = single_choice(env, config.recipe)
        net = body(config, env, out_features=int(spec.n))
        values = TensorDictModule(net, list(observations_of(env)), [ACTION_VALUE])
        return QValueActor(values, spec=spec, action_mask_key=mask_key(env))
    return gaussian_actor(config, env)


def _imitate(config: CQLConfig, loss: Any, frames: int) -> None:
    loss.actor_bc = frames < config.actor_bc_frames


def _loss(config: Any, env: Env, policy: Any) -> CQLLoss | DiscreteCQLLoss:
    if is_choice(action_of(env)[1]):
        for name in ("with_lagrange", "actor_bc_frames"):
            if getattr(config, name):
                raise SpecError(f"cql has {name} for continuous actions only, and these are discrete: leave {name} out")
        return DiscreteCQLLoss(policy, min_q_weight=config.min_q_weight, loss_function="l2", gamma=config.gamma)
    return CQLLoss(
        policy,
        critic(config, env),
        action_spec=bounded_action(config, env)[1],
        min_q_weight=config.min_q_weight,
        num_random=config.num_random,
        with_lagrange=config.with_lagrange,
        lagrange_thresh=config.lagrange_thresh,
        loss_function="l2",
        gamma=config.gamma,
    )
