"""REINFORCE: the policy gradient of sampled returns, for all kinds of actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.config import checked
from rl.trainers.families import OnPolicyConfig


@dataclass(frozen=True, kw_only=True)
class ReinforceConfig(OnPolicyConfig):
    """REINFORCE: one gradient step on the discounted returns of each batch.

    Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992. A
    return has all rewards to the end of the episode. Where the batch or a time limit cuts an episode, the value of a
    critic stands for the rest of the return; without `baseline` that is its only use. Gradients of a recurrent policy
    flow through the steps of an environment in a batch.

    Args:
        baseline: Whether to subtract the critic's value of the state from the return.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> ReinforceConfig(baseline=False).gamma
        0.99
    """

    recipe: ClassVar[str] = "reinforce"
    num_envs: int = 4
    frames_per_batch: int = checked(512, search="256,512,1024,2048")
    learning_rate: float = 0.01
    baseline: bool = True


def policy(config: OnPolicyConfig, env: Any) -> Any:
    """Create the untrained actor, for all kinds of actions.

    Raises:
        SpecError: If the environment's action is of a kind that is not trained.
    """
    from rl.trainers.actors import on_policy_actor

    return on_policy_actor(config, env)


def updater(config: ReinforceConfig, env: Any, actor: Any, critic: Any) -> Any:
    """Create gradient steps, one on the returns of each batch."""
    from rl.objectives import ReinforceLoss
    from rl.objectives.value import GAE
    from rl.trainers.loops.updater import BatchUpdater

    del env
    loss = ReinforceLoss(actor, critic, loss_critic_type="l2")
    if not config.baseline:
        loss.set_keys(advantage="value_target")
    return BatchUpdater(
        config,
        loss,
        {"loss_actor": "loss_actor", "loss_critic": "loss_value"},
        weights={"loss_actor": 1.0, "loss_value": config.critic_coeff},
        estimate=GAE(gamma=config.gamma, lmbda=1.0, value_network=critic),  # the return less the value
    )


REINFORCE = Algorithm(
    ReinforceConfig,
    loop="on_policy",
    policy=policy,
    updater=updater,
    presets="rl.trainers:presets/reinforce.yaml:reinforce",
)

train_reinforce = REINFORCE.train
