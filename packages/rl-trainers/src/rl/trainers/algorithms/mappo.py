"""MAPPO and IPPO: proximal policy optimization of groups of agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.algorithms.ppo import PPOConfig
from rl.trainers.config import checked, where
from rl.trainers.families import GroupFields


@dataclass(frozen=True, kw_only=True)
class MAPPOConfig(GroupFields, PPOConfig):
    """Proximal policy optimization of groups of agents, with a centralized critic for each group.

    Yu et al., "The surprising effectiveness of PPO in cooperative multi-agent games", 2022. The defaults are for tasks
    of VMAS.

    Args:
        centralized_critic: Whether the critic of an agent sees the observations of its group; else its own alone, which
            is ippo.
        value_norm: Whether the critic learns targets that are normalized by their running mean and deviation.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> MAPPOConfig(env="vmas/navigation").share_params
        True
    """

    recipe: ClassVar[str] = "mappo"
    absent: ClassVar[tuple[str, ...]] = (*GroupFields.absent, "learners")  # which would normalize values apart

    env: str = "vmas/balance"
    total_frames: int = 1_000_000
    num_envs: int = 64
    frames_per_batch: int = checked(6_400, search="3200,6400,12800")
    minibatch_size: int = checked(800, search="400,800,1600,3200")
    sequence_length: int = 20
    epochs: int = 10
    learning_rate: float = 3e-4
    anneal_lr: bool | str = False
    lmbda: float = 0.9
    critic_coeff: float = 1.0
    max_grad_norm: float = 5.0
    num_cells: tuple[int, ...] = (256, 256)
    eval_every: int = 100_000
    log_every: int = 6_400
    checkpoint_every: int = 500_000
    share_params: bool = checked(
        True, where(lambda shared, config: shared or config.policy == "mlp", "true with policy={policy}")
    )
    centralized_critic: bool = True
    value_norm: bool = False


@dataclass(frozen=True, kw_only=True)
class IPPOConfig(MAPPOConfig):
    """Proximal policy optimization of independent agents: the critic of each sees its own observation alone.

    De Witt et al., "Is independent learning all you need in the StarCraft multi-agent challenge?", 2020.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> IPPOConfig(env="vmas/navigation").centralized_critic
        False
    """

    recipe: ClassVar[str] = "ippo"

    centralized_critic: bool = False


def policy(config: MAPPOConfig, env: Any) -> Any:
    """Create the untrained actors of all groups.

    The actor of a group reads its observations, and writes ``(group, "action")`` and ``(group, "action_log_prob")``.

    Raises:
        SpecError: If the environment has no groups, or an action of a kind that is not trained.
    """
    from functools import partial

    from tensordict.nn import TensorDictSequential

    from rl.modules import ProbabilisticActor
    from rl.trainers.actions import distribution_for
    from rl.trainers.actors import with_scale
    from rl.trainers.group_modules import group_network, layers_of
    from rl.trainers.groups import groups_of
    from rl.trainers.recurrent import activation_of

    gain = 0.01 if config.ortho_init else None
    actors: list[Any] = []
    for group in groups_of(env, config.recipe):
        action = distribution_for(group.action, group.spec[0], type(env).__name__, config.recipe, group.mask)
        make: Any = partial(layers_of, config, group, activation=activation_of(config))
        if len(action.params) == 2:
            net: Any = with_scale(config, make, action, gain)
        else:
            net = partial(make, out_features=action.width, last_gain=gain)
        params: list[Any] = [group.key(name) for name in action.params]
        actor = ProbabilisticActor(
            group_network(config, env, group, net, params, centralized=False),
            in_keys=action.reads(params),
            out_keys=[group.action],
            spec=group.spec,
            distribution_class=action.kind,
            distribution_kwargs=action.kwargs,
            return_log_prob=True,
            log_prob_key=group.key("action_log_prob"),
        )
        actors.append(actor)
    return TensorDictSequential(*actors)


def critic(config: MAPPOConfig, env: Any) -> Any:
    """Create the untrained critics of all groups, which write ``(group, "state_value")``."""
    from functools import partial

    from tensordict.nn import TensorDictSequential

    from rl.trainers.group_modules import group_network, layers_of
    from rl.trainers.groups import groups_of
    from rl.trainers.recurrent import activation_of

    critics: list[Any] = []
    for group in groups_of(env, config.recipe):
        gain = 1.0 if config.ortho_init else None
        net = partial(layers_of, config, group, out_features=1, activation=activation_of(config), last_gain=gain)
        keys: list[Any] = [group.key("state_value")]
        centralized = config.centralized_critic
        critics.append(group_network(config, env, group, net, keys, centralized=centralized, state="critic_state"))
    return TensorDictSequential(*critics)


def updater(config: MAPPOConfig, env: Any, actor: Any, critic: Any) -> Any:
    """Epochs of minibatches over the losses of all groups."""
    from rl.core.keys import leaf_keys
    from rl.modules import RunningValueNorm
    from rl.objectives import MAPPOLoss, MultiAgentGAE
    from rl.trainers.group_modules import GroupEstimators, GroupLosses
    from rl.trainers.groups import groups_of
    from rl.trainers.loops.updater import MinibatchUpdater

    groups = groups_of(env, config.recipe)
    norms = [RunningValueNorm(1).to(config.device) if config.value_norm else None for _ in groups]
    estimators: list[Any] = []
    for group, values, norm in zip(groups, critic.module, norms, strict=True):
        one = MultiAgentGAE(gamma=config.gamma, lmbda=config.lmbda, value_network=values, value_norm=norm)
        one.set_keys(**group.loss_keys())
        estimators.append(one)

    def losses(**settings: Any) -> GroupLosses:
        made: list[Any] = []
        for group, one, values, norm in zip(groups, actor.module, critic.module, norms, strict=True):
            loss = MAPPOLoss(one, values, value_norm=norm, **config.loss_settings, **settings)
            loss.set_keys(**group.loss_keys())
            made.append(loss)
        return GroupLosses(made)

    seen = leaf_keys(env.observation_spec)
    return MinibatchUpdater(
        config,
        losses,
        GroupEstimators(estimators),
        reads=[group.key("mask") for group in groups if group.key("mask") in seen],
        advantages=[(group.key("advantage"), group.key("value_target")) for group in groups],
        parts={f"value_norm_{group.name}": norm for group, norm in zip(groups, norms, strict=True) if norm is not None},
    )


MAPPO = Algorithm(
    MAPPOConfig,
    loop="on_policy",
    policy=policy,
    critic=critic,
    updater=updater,
    presets="rl.trainers:presets/mappo.yaml:mappo",
)
IPPO = Algorithm(
    IPPOConfig,
    loop="on_policy",
    policy=policy,
    critic=critic,
    updater=updater,
    presets="rl.trainers:presets/mappo.yaml:ippo",
)

train_mappo, train_ippo = MAPPO.train, IPPO.train
