"""QMIX, VDN and independent Q-learning: action values of teams of agents, for discrete actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.config import above, checked
from rl.trainers.families import GroupFields, QLearningConfig


@dataclass(frozen=True, kw_only=True)
class TeamQConfig(GroupFields, QLearningConfig):
    """Q-learning of a team of agents with discrete actions; base of qmix, vdn and iql-ma.

    Raises:
        ArgumentError: If a value is out of its range.
    """

    absent: ClassVar[tuple[str, ...]] = (*GroupFields.absent, "dueling", "noisy", "n_steps")

    env: str = "pettingzoo/mpe2/simple_spread"
    total_frames: int = 500_000
    num_envs: int = 8
    frames_per_batch: int = 200
    utd_ratio: float = 0.1
    batch_size: int = 256
    buffer_size: int = 200_000
    learning_starts: int = 5_000
    learning_rate: float = 5e-4
    tau: float = 0.01
    annealing_num_steps: int = checked(100_000, search="10000..300000:log")
    eval_every: int = 50_000
    log_every: int = 5_000


@dataclass(frozen=True, kw_only=True)
class QMIXConfig(TeamQConfig):
    """QMIX: Q-learning of a team, whose value is a monotonic function of the values of the agents; discrete actions.

    Rashid et al., "QMIX: Monotonic value function factorisation for deep multi-agent reinforcement learning", 2018. The
    state that the mixing network reads is that of the environment (``state``), else the observations of all agents.

    Args:
        mixing_embed_dim: Width of the mixing network.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> QMIXConfig(gamma=0.95).mixing_embed_dim
        32
    """

    recipe: ClassVar[str] = "qmix"

    tau: float = 0.0
    target_every: int = 10_000
    mixing_embed_dim: int = above(0, 32)


@dataclass(frozen=True, kw_only=True)
class VDNConfig(TeamQConfig):
    """Value decomposition: Q-learning of a team, whose value is the sum of those of the agents; discrete actions.

    Sunehag et al., "Value-decomposition networks for cooperative multi-agent learning", 2018.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> VDNConfig(gamma=0.95).gamma
        0.95
    """

    recipe: ClassVar[str] = "vdn"


@dataclass(frozen=True, kw_only=True)
class IQLMAConfig(TeamQConfig):
    """Independent Q-learning: each agent learns the value of its own actions from its own reward; discrete actions.

    Tan, "Multi-agent reinforcement learning: Independent vs. cooperative agents", 1993, with the network of Mnih et
    al., 2015.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> IQLMAConfig(gamma=0.95).gamma
        0.95
    """

    recipe: ClassVar[str] = "iql-ma"


def policy(config: TeamQConfig, env: Any) -> Any:
    """Create the untrained greedy policy of all groups: each agent takes the action of the largest value of its own.

    Raises:
        SpecError: If the environment has no group of agents, or actions that are not discrete.
    """
    from tensordict.nn import TensorDictSequential

    from rl.modules import QValueModule
    from rl.trainers.group_modules import inputs_of, layers_of
    from rl.trainers.groups import choice_of, groups_of

    policies: list[Any] = []
    for group in groups_of(env, config.recipe):
        n = int(choice_of(env, group, config.recipe).n)
        net = layers_of(config, group, n, centralized=False, activation=config.activation, last_gain=None)
        value: Any = group.key("action_value")
        choice = QValueModule(
            action_value_key=value,
            action_mask_key=group.mask,
            out_keys=[group.action, value, group.key("chosen_action_value")],
            spec=group.spec,
        )
        policies.append(TensorDictSequential(inputs_of(env, group, net, [value], config.device), choice))
    return TensorDictSequential(*policies)


def explore(config: TeamQConfig, env: Any) -> Any:
    """Random actions of each agent for itself, legal ones where the environment writes masks."""
    from rl.modules import EGreedyModule
    from rl.trainers.group_modules import RandomActions
    from rl.trainers.groups import groups_of

    return RandomActions(
        [
            EGreedyModule(
                group.spec,
                eps_init=config.eps_init,
                eps_end=config.eps_end,
                annealing_num_steps=config.annealing_num_steps,
                action_key=group.action,
                action_mask_key=group.mask,
            )
            for group in groups_of(env, config.recipe)
        ]
    )


def qmix_loss(config: QMIXConfig, env: Any, policy: Any) -> Any:
    """Create the losses of all groups, with mixers of the environment's state or of all observations of the group."""
    import math

    from rl.core.keys import leaf_keys
    from rl.modules import QMixer
    from rl.trainers.group_modules import GroupLosses
    from rl.trainers.groups import groups_of

    losses: list[Any] = []
    for group, one in zip(groups_of(env, config.recipe), policy.module, strict=True):
        keys: list[Any] = ["state"] if "state" in leaf_keys(env.observation_spec) else list(group.observations)
        size = sum(math.prod(env.observation_spec[key].shape[len(env.batch_size) :]) for key in keys)
        losses.append(
            _team_loss(config, env, group, one, QMixer((size,), config.mixing_embed_dim, group.n_agents), keys)
        )
    return GroupLosses(losses)


def vdn_loss(config: VDNConfig, env: Any, policy: Any) -> Any:
    """Create the losses of all groups, with mixers that add."""
    from rl.modules import VDNMixer
    from rl.trainers.group_modules import GroupLosses
    from rl.trainers.groups import groups_of

    groups = zip(groups_of(env, config.recipe), policy.module, strict=True)
    return GroupLosses([_team_loss(config, env, group, one, VDNMixer(group.n_agents), []) for group, one in groups])


def _team_loss(config: TeamQConfig, env: Any, group: Any, policy: Any, mixer: Any, keys: list[Any]) -> Any:
    """Create the loss of a team, whose mixer is called with the values and what is under `keys`."""
    from tensordict.nn import TensorDictModule

    from rl.objectives import QMixerLoss
    from rl.trainers.group_modules import Mixed

    dims = [len(env.observation_spec[key].shape) - len(env.batch_size) for key in keys]
    network = TensorDictModule(
        Mixed(mixer, dims).to(config.device),
        in_keys=[group.key("chosen_action_value"), *keys],
        out_keys=[group.key("team_value")],
    )
    loss = QMixerLoss(policy, network, loss_function="l2", double_dqn=config.double_dqn, gamma=config.gamma)
    loss.set_keys(reward=group.reward, global_value=group.key("team_value"))
    return loss


def iql_ma_loss(config: IQLMAConfig, env: Any, policy: Any) -> Any:
    """Create the losses of all groups, in which each agent learns by itself."""
    from rl.objectives import DQNLoss
    from rl.trainers.group_modules import GroupLosses
    from rl.trainers.groups import groups_of

    losses: list[Any] = []
    for group, one in zip(groups_of(env, config.recipe), policy.module, strict=True):
        loss = DQNLoss(one, loss_function="smooth_l1", double_dqn=config.double_dqn, gamma=config.gamma)
        loss.set_keys(**group.loss_keys("action_value", "chosen_action_value", "action"))
        losses.append(loss)
    return GroupLosses(losses)


QMIX = Algorithm(
    QMIXConfig,
    loop="q_learning",
    policy=policy,
    loss=qmix_loss,
    explore=explore,
    presets="rl.trainers:presets/qmix.yaml:qmix",
)
VDN = Algorithm(
    VDNConfig,
    loop="q_learning",
    policy=policy,
    loss=vdn_loss,
    explore=explore,
    presets="rl.trainers:presets/qmix.yaml:vdn",
)
IQL_MA = Algorithm(
    IQLMAConfig,
    loop="q_learning",
    policy=policy,
    loss=iql_ma_loss,
    explore=explore,
    presets="rl.trainers:presets/qmix.yaml:iql-ma",
)

train_qmix, train_vdn, train_iql_ma = QMIX.train, VDN.train, IQL_MA.train
