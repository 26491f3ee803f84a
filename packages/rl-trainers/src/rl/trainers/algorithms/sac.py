"""SAC and its relatives: TQC, REDQ, CrossQ for bounded continuous actions, and SAC for discrete ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.config import Rule, above, checked, where, widths
from rl.trainers.families import SoftConfig


@dataclass(frozen=True, kw_only=True)
class SACConfig(SoftConfig):
    """Soft actor-critic; bounded continuous actions only.

    Haarnoja et al., "Soft actor-critic algorithms and applications", 2018.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> SACConfig(env="Pendulum-v1").tau
        0.005
    """

    recipe: ClassVar[str] = "sac"


@dataclass(frozen=True, kw_only=True)
class TQCConfig(SoftConfig):
    """Truncated quantile critics; bounded continuous actions only.

    Kuznetsov et al., "Controlling overestimation bias with truncated mixture of continuous distributional quantile
    critics", 2020.

    Args:
        num_qvalue_nets: Number of critics.
        quantiles: Number of quantiles that each critic writes.
        top_quantiles_to_drop_per_net: Number of the largest quantiles that the target drops for each critic.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> TQCConfig(env="Pendulum-v1").tau
        0.005
    """

    recipe: ClassVar[str] = "tqc"
    num_qvalue_nets: int = above(0, 2)
    quantiles: int = above(0, 25)
    top_quantiles_to_drop_per_net: int = checked(
        2, where(lambda n, config: 0 <= n < config.quantiles, "0 or more, and below quantiles")
    )


@dataclass(frozen=True, kw_only=True)
class REDQConfig(SoftConfig):
    """Randomized ensembled double Q-learning; bounded continuous actions only.

    Chen et al., "Randomized ensembled double Q-learning: learning fast without a model", 2021; the paper takes 20
    updates a step (``utd_ratio=20``).

    Args:
        num_qvalue_nets: Number of critics.
        sub_sample_len: Number of critics whose minimum is the target.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> REDQConfig(env="Pendulum-v1").tau
        0.005
    """

    recipe: ClassVar[str] = "redq"
    num_qvalue_nets: int = above(0, 10)
    sub_sample_len: int = checked(
        2, where(lambda n, config: 0 < n <= config.num_qvalue_nets, "above 0, and at most num_qvalue_nets")
    )


@dataclass(frozen=True, kw_only=True)
class CrossQConfig(SoftConfig):
    """CrossQ: soft actor-critic with batch renormalization, without target networks; bounded continuous actions only.

    Bhatt et al., "CrossQ: batch normalization in deep reinforcement learning for greater sample efficiency and
    simplicity", 2024. Adam has the beta1 0.5 of the paper.

    Args:
        tau: Always 0, as there are no target networks.
        num_cells: Widths of the hidden layers of the actor.
        critic_num_cells: Widths of the hidden layers of the critics; the paper has [2048,2048], Stable-Baselines3
            [1024,1024], which are slow on a CPU.
        policy_delay: Number of gradient steps of the critics for each of the actor.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> CrossQConfig(env="Pendulum-v1").policy_delay
        3
    """

    recipe: ClassVar[str] = "crossq"
    absent: ClassVar[tuple[str, ...]] = ("learners",)  # whose batches would be normalized apart
    learning_rate: float = 1e-3
    tau: float = checked(0.0, Rule(lambda tau: tau == 0, "0, as crossq has no target networks"))
    critic_num_cells: tuple[int, ...] = widths((256, 256))
    policy_delay: int = above(0, 3)


@dataclass(frozen=True, kw_only=True)
class DiscreteSACConfig(SoftConfig):
    """Soft actor-critic for discrete actions: one choice of several.

    Christodoulou, "Soft actor-critic for discrete action settings", 2019. The defaults solve CartPole-v1.

    Args:
        target_entropy: Entropy of the policy in nats that the temperature is learned for; auto is
            target_entropy_weight * log(number of actions).
        target_entropy_weight: Share of the largest entropy; the paper has 0.98, which is close to random actions.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> DiscreteSACConfig(env="Acrobot-v1").target_entropy_weight
        0.7
    """

    recipe: ClassVar[str] = "discrete-sac"
    env: str = "CartPole-v1"
    total_frames: int = 50_000
    utd_ratio: float = 0.5
    batch_size: int = 128
    buffer_size: int = 50_000
    tau: float = 0.02
    eval_every: int = 2_500
    num_cells: tuple[int, ...] = (128, 128)
    target_entropy_weight: float = checked(0.7, Rule(lambda share: 0 < share < 1, "above 0 and below 1"))


def policy(config: SoftConfig, env: Any) -> Any:
    """Create the untrained tanh-normal policy.

    Raises:
        SpecError: If the environment's action is no vector of bounded floats.
    """
    from rl.trainers.actors import gaussian_actor

    return gaussian_actor(config, env)


def sac_loss(config: SACConfig, env: Any, policy: Any) -> Any:
    """Create the loss, with its critics."""
    from rl.objectives import SACLoss
    from rl.trainers.actors import critic

    return SACLoss(policy, critic(config, env), loss_function="l2", gamma=config.gamma, **config.temperature)


def tqc_loss(config: TQCConfig, env: Any, policy: Any) -> Any:
    """Create the loss, with critics of quantiles."""
    from rl.objectives import TQCLoss
    from rl.trainers.actors import critic

    return TQCLoss(
        policy,
        critic(config, env, config.quantiles),
        num_qvalue_nets=config.num_qvalue_nets,
        top_quantiles_to_drop_per_net=config.top_quantiles_to_drop_per_net,
        gamma=config.gamma,
        **config.temperature,
    )


def redq_loss(config: REDQConfig, env: Any, policy: Any) -> Any:
    """Create the loss, with its critics."""
    from rl.objectives import REDQLoss
    from rl.trainers.actors import critic

    return REDQLoss(
        policy,
        critic(config, env),
        num_qvalue_nets=config.num_qvalue_nets,
        sub_sample_len=config.sub_sample_len,
        loss_function="l2",
        gamma=config.gamma,
        **config.temperature,
    )


def crossq_policy(config: CrossQConfig, env: Any) -> Any:
    """Create the untrained policy, in evaluation mode: acts with the running statistics and leaves them.

    Raises:
        SpecError: If the environment's action is no vector of bounded floats.
    """
    from rl.trainers.actors import gaussian_actor

    return gaussian_actor(config, env, layer_class=normalized_linear).eval()


def crossq_loss(config: CrossQConfig, env: Any, policy: Any) -> Any:
    """Create the loss, with its critics; next actions are those of the policy in evaluation mode."""
    from rl.objectives import CrossQLoss
    from rl.trainers.actors import critic

    return CrossQLoss(
        policy,
        critic(config, env, num_cells=config.critic_num_cells, layer_class=normalized_linear),
        loss_function="l2",
        gamma=config.gamma,
        **config.temperature,
    )


def normalized_linear(in_features: int, out_features: int, **options: Any) -> Any:
    """Create a linear layer of normalized inputs, the first 100,000 batches by their own statistics (CrossQ)."""
    from torch import nn

    from rl.modules import BatchRenorm1d

    renorm = BatchRenorm1d(in_features, warmup_steps=100_000)
    return nn.Sequential(renorm, nn.Linear(in_features, out_features, **options))


def discrete_policy(config: DiscreteSACConfig, env: Any) -> Any:
    """Create the untrained policy of one choice.

    Raises:
        SpecError: If the environment's action is not one choice of several.
    """
    from rl.modules import ProbabilisticActor
    from rl.trainers.actions import distribution_of, single_choice

    spec = single_choice(env, config.recipe)
    action = distribution_of(env, config.recipe)
    return ProbabilisticActor(
        _numbers_of_actions(config, env, [*action.params]),
        in_keys=action.reads(),
        out_keys=["action"],
        spec=spec,
        distribution_class=action.kind,
    )


def discrete_loss(config: DiscreteSACConfig, env: Any, policy: Any) -> Any:
    """Create the loss, with critics of all actions."""
    from rl.objectives import DiscreteSACLoss

    return DiscreteSACLoss(
        policy,
        _numbers_of_actions(config, env, ["action_value"]),
        target_entropy_weight=config.target_entropy_weight,
        loss_function="smooth_l1",
        gamma=config.gamma,
        **config.temperature,
    )


def _numbers_of_actions(config: DiscreteSACConfig, env: Any, out_keys: list[Any]) -> Any:
    """Create a network from observations to a number for each action."""
    from tensordict.nn import TensorDictModule

    from rl.trainers.actions import single_choice
    from rl.trainers.actors import body
    from rl.trainers.networks import observations_of

    net = body(config, env, out_features=int(single_choice(env, config.recipe).n))
    return TensorDictModule(net, in_keys=list(observations_of(env)), out_keys=out_keys)


SAC = Algorithm(SACConfig, loop="off_policy", policy=policy, loss=sac_loss, presets="rl.trainers:presets/sac.yaml:sac")
TQC = Algorithm(TQCConfig, loop="off_policy", policy=policy, loss=tqc_loss, presets="rl.trainers:presets/sac.yaml:tqc")
REDQ = Algorithm(
    REDQConfig, loop="off_policy", policy=policy, loss=redq_loss, presets="rl.trainers:presets/sac.yaml:redq"
)
CROSSQ = Algorithm(
    CrossQConfig,
    loop="off_policy",
    policy=crossq_policy,
    loss=crossq_loss,
    actor_every="policy_delay",
    betas=(0.5, 0.999),
    presets="rl.trainers:presets/sac.yaml:crossq",
)
DISCRETE_SAC = Algorithm(
    DiscreteSACConfig,
    loop="off_policy",
    policy=discrete_policy,
    loss=discrete_loss,
    presets="rl.trainers:presets/sac.yaml:discrete-sac",
)

train_sac, train_tqc, train_redq, train_crossq = SAC.train, TQC.train, REDQ.train, CROSSQ.train
train_discrete_sac = DISCRETE_SAC.train
