"""DQN, C51, QR-DQN and Rainbow: action values, and distributions of returns, for one choice of several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.config import POLICIES, Rule, above, at_least, checked, in_range, one_of, where
from rl.trainers.families import QLearningConfig


@dataclass(frozen=True, kw_only=True)
class DQNConfig(QLearningConfig):
    """Deep Q-learning: replay buffer, target network, epsilon-greedy exploration; discrete actions only.

    Mnih et al., "Human-level control through deep reinforcement learning", 2015; double Q-learning after
    van Hasselt et al., 2016; recurrent policies learn from stored sequences after Kapturowski et al., "Recurrent
    Experience Replay in Distributed Reinforcement Learning", 2019. The defaults solve CartPole-v1.

    Args:
        n_steps: Number of steps whose rewards a target adds up before it takes the value of a state; 1 with a recurrent
            policy, which has lmbda.
        batch_size: Number of transitions of one gradient step; with a recurrent policy a multiple of sequence_length.
        buffer_size: Number of transitions that the replay buffer keeps; with a recurrent policy full batches of them.
        sampler: Sampler of the replay buffer: NAME, 'NAME:{key: value}' or module:callable, for example
            'prioritized:{alpha: 0.6, beta: 0.4}'; random with a recurrent policy.
        policy: Kind of network: mlp, or with a memory lstm or gru, for environments that hide a part of their state.
        recurrent_size: Width of that memory.
        recurrent_layers: Number of its layers, one on the other.
        recurrent_horizon: Largest initial memory span of a unit, in steps; the units are spread between 1 and this
            number. Above 1 for tasks with long delays.
        sequence_length: Number of steps of a sampled sequence that a recurrent policy learns from.
        burn_in: Number of steps before these, used only to update the stored recurrent state.
        lmbda: Weight of longer returns in the targets of a recurrent policy; 0 looks one step ahead, 1 to the end
            of the sequence.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> DQNConfig(env="Acrobot-v1", gamma=0.98).env
        'Acrobot-v1'
    """

    recipe: ClassVar[str] = "dqn"

    n_steps: int = checked(
        1,
        where(
            lambda n, config: n == 1 or config.policy == "mlp",
            lambda config: f"1 with policy={config.policy}, which has lmbda",
        ),
    )
    sampler: str = checked(
        "random",
        where(lambda name, config: name == "random" or config.policy == "mlp", "random with policy={policy}"),
    )
    batch_size: int = checked(
        64,
        where(
            lambda n, config: n % config.sequence_length == 0 or config.policy == "mlp",
            "a multiple of sequence_length ({sequence_length})",
        ),
    )
    policy: str = one_of(POLICIES, "mlp")
    recurrent_size: int = above(0, 64)
    recurrent_layers: int = above(0, 1)
    recurrent_horizon: int = above(0, 1)
    sequence_length: int = above(0, 16)
    burn_in: int = at_least(
        0,
        8,
        where(
            lambda n, config: n + config.sequence_length <= config.stored_steps or config.policy == "mlp",
            "so short that with sequence_length ({sequence_length}) it fits into the {stored_steps} steps of an"
            " environment that the buffer keeps",
        ),
    )
    lmbda: float = in_range(0, 1, 0.8)

    @property
    def stored_steps(self) -> int:
        """Steps of an environment that a buffer of full batches keeps."""
        return (self.buffer_size - self.buffer_size % self.frames_per_batch) // self.num_envs


_ABOVE_V_MIN = where(lambda v_max, config: config.v_min < v_max, "above v_min ({v_min})")


@dataclass(frozen=True, kw_only=True)
class C51Config(QLearningConfig):
    """Deep Q-learning of the distribution of returns over fixed atoms; discrete actions only.

    Bellemare et al., "A distributional perspective on reinforcement learning", 2017. The defaults solve CartPole-v1;
    for Atari games with clipped rewards the paper has ``v_min=-10, v_max=10, atoms=51``.

    Args:
        v_min: Smallest return that the atoms stand for; smaller ones count as this.
        v_max: Largest return that the atoms stand for.
        atoms: Number of atoms.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> C51Config(env="Acrobot-v1").atoms
        101
    """

    recipe: ClassVar[str] = "c51"

    v_min: float = -100.0
    v_max: float = checked(100.0, _ABOVE_V_MIN)
    atoms: int = checked(101, Rule(lambda n: n > 1, "2 or more"))


@dataclass(frozen=True, kw_only=True)
class QRDQNConfig(QLearningConfig):
    """Deep Q-learning of the quantiles of returns; discrete actions only.

    Dabney et al., "Distributional reinforcement learning with quantile regression", 2018. The defaults solve
    CartPole-v1; for Atari games the paper has 200 quantiles.

    Args:
        quantiles: Number of quantiles of each action.
        kappa: Error up to which the loss is quadratic, units of return.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> QRDQNConfig(env="Acrobot-v1").quantiles
        25
    """

    recipe: ClassVar[str] = "qrdqn"

    quantiles: int = above(0, 25)
    kappa: float = at_least(0, 1.0)


@dataclass(frozen=True, kw_only=True)
class RainbowConfig(C51Config):
    """Rainbow: C51 with double Q-learning, dueling and noisy networks, priorities and multi-step returns.

    Hessel et al., "Rainbow: combining improvements in deep reinforcement learning", 2018. It is ``c51`` with other
    defaults; each part can be switched off. For Atari games the paper has ``v_min=-10, v_max=10, atoms=51,
    learning_rate=6.25e-5, batch_size=32, buffer_size=1_000_000, learning_starts=20_000, utd_ratio=0.25,
    tau=0, target_every=8_000`` (frames that the agent sees).

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> RainbowConfig(env="Acrobot-v1").n_steps
        3
    """

    recipe: ClassVar[str] = "rainbow"

    n_steps: int = 3
    sampler: str = "prioritized:{alpha: 0.5, beta: 0.4}"
    dueling: bool = True
    noisy: bool = True
    eps_init: float = 0.0
    eps_end: float = 0.0


def dqn_policy(config: DQNConfig, env: Any) -> Any:
    """Create the untrained greedy policy: reads observations, writes action values and ``action``.

    Raises:
        SpecError: If the environment's action is not one choice of several.
    """
    from functools import partial

    from rl.modules import QValueActor
    from rl.trainers.actions import mask_key, single_choice
    from rl.trainers.actors import value_network
    from rl.trainers.recurrent import with_memory

    spec = single_choice(env, config.recipe)
    net = partial(value_network, config, env, (int(spec.n),), (1,))
    return QValueActor(with_memory(config, env, net, ["action_value"]), spec=spec, action_mask_key=mask_key(env))


def dqn_loss(config: DQNConfig, env: Any, policy: Any) -> Any:
    """DQN loss with one-step targets, or with lambda returns for a recurrent policy, whose samples are sequences.

    Actions that were not greedy are not corrected for, as in Kapturowski et al.; Kozuno et al., "Revisiting Peng's
    Q(lambda) for modern reinforcement learning", 2021, explain why this works.
    """
    from rl.objectives import DQNLoss

    del env
    loss = DQNLoss(
        policy, loss_function="smooth_l1", delay_value=True, double_dqn=config.double_dqn, gamma=config.gamma
    )
    if config.policy != "mlp":
        loss.make_value_estimator("td-lambda", gamma=config.gamma, lmbda=config.lmbda)
    return loss


def sequences(config: DQNConfig, policy: Any) -> Any:
    """Create a buffer of sequences ``[slices, sequence_length]`` with burned-in states, for a recurrent policy.

    Sequences continue over the ends of episodes; the state is reset where ``is_init`` is true. Every step is therefore
    sampled with the same probability, also in episodes shorter than a sequence.
    """
    from rl.replay import BurnInTransform, LazyTensorStorage, ReplayBuffer, SliceSampler
    from rl.trainers.recurrent import NEVER_DONE

    if config.policy == "mlp":
        return None
    length = config.burn_in + config.sequence_length
    size = config.buffer_size - config.buffer_size % config.frames_per_batch  # full batches
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(size, device=config.device, ndim=2),
        sampler=SliceSampler(slice_len=length, end_key=NEVER_DONE, pad_output=True),
        batch_size=config.batch_size // config.sequence_length * length,
        transform=BurnInTransform(policy[0][:-1], config.burn_in),  # without the layers after the recurrent ones
    )
    return buffer, config.num_envs * length


def c51_policy(config: C51Config, env: Any) -> Any:
    """Create the untrained greedy policy: reads observations, writes log-probabilities of the atoms and ``action``.

    Raises:
        SpecError: If the environment's action is not one choice of several.
    """
    import torch
    from tensordict.nn import TensorDictModule

    from rl.modules import DistributionalQValueActor
    from rl.trainers.actions import mask_key, single_choice
    from rl.trainers.actors import value_network
    from rl.trainers.networks import observations_of

    spec = single_choice(env, config.recipe)
    net = value_network(config, env, (config.atoms, int(spec.n)), (config.atoms, 1))
    module = TensorDictModule(net, in_keys=list(observations_of(env)), out_keys=["action_value"])
    support = torch.linspace(config.v_min, config.v_max, config.atoms, device=config.device)
    return DistributionalQValueActor(module, spec=spec, support=support, action_mask_key=mask_key(env))


def c51_loss(config: C51Config, env: Any, policy: Any) -> Any:
    """Create the loss, with the support of the policy."""
    from rl.objectives import DistributionalDQNLoss

    del env
    return DistributionalDQNLoss(policy, delay_value=True, double_dqn=config.double_dqn, gamma=config.gamma)


def qrdqn_policy(config: QRDQNConfig, env: Any) -> Any:
    """Create the untrained greedy policy: reads observations, writes quantiles and ``action``.

    Raises:
        SpecError: If the environment's action is not one choice of several.
    """
    from tensordict.nn import TensorDictModule

    from rl.modules import QuantileQValueActor
    from rl.trainers.actions import mask_key, single_choice
    from rl.trainers.actors import value_network
    from rl.trainers.networks import observations_of

    spec = single_choice(env, config.recipe)
    net = value_network(config, env, (int(spec.n), config.quantiles), (1, config.quantiles))
    module = TensorDictModule(net, in_keys=list(observations_of(env)), out_keys=["action_value"])
    return QuantileQValueActor(module, spec=spec, action_mask_key=mask_key(env))


def qrdqn_loss(config: QRDQNConfig, env: Any, policy: Any) -> Any:
    """Create the loss."""
    from rl.objectives import QRDQNLoss

    del env
    return QRDQNLoss(policy, kappa=config.kappa, delay_value=True, double_dqn=config.double_dqn, gamma=config.gamma)


DQN = Algorithm(
    DQNConfig,
    loop="q_learning",
    policy=dqn_policy,
    loss=dqn_loss,
    sequences=sequences,
    presets="rl.trainers:presets/dqn.yaml:dqn",
)
C51 = Algorithm(
    C51Config, loop="q_learning", policy=c51_policy, loss=c51_loss, presets="rl.trainers:presets/dqn.yaml:c51"
)
QRDQN = Algorithm(
    QRDQNConfig, loop="q_learning", policy=qrdqn_policy, loss=qrdqn_loss, presets="rl.trainers:presets/dqn.yaml:qrdqn"
)
RAINBOW = Algorithm(
    RainbowConfig, loop="q_learning", policy=c51_policy, loss=c51_loss, presets="rl.trainers:presets/dqn.yaml:rainbow"
)

train_dqn, train_c51, train_qrdqn, train_rainbow = DQN.train, C51.train, QRDQN.train, RAINBOW.train
