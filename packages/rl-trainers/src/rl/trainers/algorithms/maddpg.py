"""MADDPG: deterministic policy gradient of groups of agents, for bounded continuous actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.families import DeterministicConfig, GroupFields


@dataclass(frozen=True, kw_only=True)
class MADDPGConfig(GroupFields, DeterministicConfig):
    """Multi-agent deep deterministic policy gradient: critics of the observations and actions of a group.

    Lowe et al., "Multi-agent actor-critic for mixed cooperative-competitive environments", 2017; bounded continuous
    actions. The actor of an agent is improved with the present actions of the others, not with those of the buffer.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> MADDPGConfig(env="vmas/navigation").share_params
        True
    """

    recipe: ClassVar[str] = "maddpg"
    absent: ClassVar[tuple[str, ...]] = (*GroupFields.absent, "n_steps")

    env: str = "vmas/balance"
    total_frames: int = 500_000
    num_envs: int = 32
    frames_per_batch: int = 320
    utd_ratio: float = 0.1
    batch_size: int = 256
    buffer_size: int = 200_000
    learning_starts: int = 5_000
    learning_rate: float = 3e-4
    eval_every: int = 50_000
    log_every: int = 5_000


def policy(config: MADDPGConfig, env: Any) -> Any:
    """Create the untrained policy of all groups: each agent reads its own observation.

    Raises:
        SpecError: If the environment has no groups of agents, or their actions are no bounded floats.
    """
    from tensordict.nn import TensorDictSequential

    from rl.trainers.actors import Squashed
    from rl.trainers.group_modules import inputs_of, layers_of
    from rl.trainers.groups import bounded_groups

    actors: list[Any] = []
    for group in bounded_groups(env, config.recipe):
        width = int(group.spec.shape[-1])
        net = layers_of(config, group, width, centralized=False, activation=config.activation, last_gain=None)
        actor = Squashed(net, group.spec.low, group.spec.high)
        actors.append(inputs_of(env, group, actor, [group.action], config.device))
    return TensorDictSequential(*actors)


def explore(config: MADDPGConfig, env: Any) -> Any:
    """Noise on the actions of all groups."""
    from tensordict.nn import TensorDictSequential

    from rl.trainers.actors import noise_of
    from rl.trainers.groups import bounded_groups

    groups = bounded_groups(env, config.recipe)
    return TensorDictSequential(*[noise_of(config, group.action, group.spec) for group in groups])


def loss(config: MADDPGConfig, env: Any, policy: Any) -> Any:
    """Create the losses of all groups, with critics of the observations and actions of a group."""
    from rl.objectives import DDPGLoss
    from rl.trainers.group_modules import GroupLosses, inputs_of, layers_of
    from rl.trainers.groups import bounded_groups

    losses: list[Any] = []
    for group, actor in zip(bounded_groups(env, config.recipe), policy.module, strict=True):
        width = int(group.spec.shape[-1])
        net = layers_of(config, group, 1, centralized=True, activation=config.activation, last_gain=None, more=width)
        value = group.key("state_action_value")
        critic = inputs_of(env, group, net, [value], config.device, more=[group.action])
        one = DDPGLoss(actor, critic, gamma=config.gamma)
        one.set_keys(**group.loss_keys("state_action_value", "action"))
        losses.append(one)
    return GroupLosses(losses)


MADDPG = Algorithm(
    MADDPGConfig,
    loop="off_policy",
    policy=policy,
    loss=loss,
    explore=explore,
    presets="rl.trainers:presets/maddpg.yaml:maddpg",
)

train_maddpg = MADDPG.train
