"""The recipe ``discrete-sac``: soft actor-critic for discrete actions, in the loop of `off_policy`."""

from __future__ import annotations

from typing import Any

from tensordict.nn import TensorDictModule

from rl.core.interfaces import Env
from rl.core.keys import ACTION, ACTION_VALUE
from rl.modules import ProbabilisticActor
from rl.objectives import DiscreteSACLoss
from rl.trainers._build.actions import distribution_of, single_choice
from rl.trainers._build.networks import observations_of
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.discrete_sac._config import DISCRETE_SAC, DiscreteSACConfig
from rl.trainers.recipes.off_policy._networks import body
from rl.trainers.recipes.off_policy._train import train_off_policy

__all__ = ["discrete_sac_policy", "train_discrete_sac"]


def train_discrete_sac(config: DiscreteSACConfig, **options: Any) -> TrainResult:
    """Train with soft actor-critic for discrete actions.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Example:
        >>> import tempfile
        >>> config = DiscreteSACConfig(
        ...     total_frames=256, learning_starts=128, updates_per_step=0.05, minibatch_size=32,
        ...     hidden=(16,), eval_episodes=1, final_eval_episodes=1, loggers=("csv",),
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train_discrete_sac(config, out=f"{folder}/run", display="none").train_frames
        256
    """
    return train_off_policy(DISCRETE_SAC, config, discrete_sac_policy, discrete_sac_loss, **options)


def discrete_sac_policy(config: DiscreteSACConfig, env: Env) -> ProbabilisticActor:
    """The untrained policy: reads observations, writes ``action``.

    Raises:
        SpecError: if the environment's action is not one choice of several.
    """
    spec = single_choice(env, config.recipe)
    action = distribution_of(env, "discrete-sac")
    return ProbabilisticActor(
        _of_observations(config, env, spec, [*action.params]),
        in_keys=action.reads(),
        out_keys=[ACTION],
        spec=spec,
        distribution_class=action.kind,
    )


def discrete_sac_loss(config: DiscreteSACConfig, env: Env, policy: Any) -> DiscreteSACLoss:
    """The loss, with its critics."""
    return DiscreteSACLoss(
        policy,
        _of_observations(config, env, single_choice(env, config.recipe), [ACTION_VALUE]),
        target_entropy_weight=config.target_entropy_weight,
        loss_function="smooth_l1",
        gamma=config.gamma,
        **config.temperature,
    )


def _of_observations(config: DiscreteSACConfig, env: Env, spec: Any, out_keys: list[Any]) -> TensorDictModule:
    """A network from observations to a number for each action."""
    net = body(config, env, out_features=int(spec.n))
    return TensorDictModule(net, in_keys=list(observations_of(env)), out_keys=out_keys)
