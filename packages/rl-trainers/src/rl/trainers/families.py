"""Settings that the algorithms of a family share, one class a loop. Imports no torch, so that --help is fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.config import (
    DISCOUNTS,
    POLICIES,
    Rule,
    RunConfig,
    above,
    annealed,
    at_least,
    checked,
    in_range,
    one_of,
    where,
    widths,
)

__all__ = [
    "ChunkConfig",
    "DeterministicConfig",
    "EnsembleFields",
    "GroupFields",
    "OffPolicyConfig",
    "OfflineConfig",
    "OnPolicyConfig",
    "QLearningConfig",
    "ScheduleFields",
    "SoftConfig",
    "WorldModelConfig",
]

_WHOLE_ROUNDS = where(lambda n, config: n > 0 and n % config.num_envs == 0, "a multiple of num_envs ({num_envs})")
_FITS = where(
    lambda n, config: n >= max(config.batch_size, config.frames_per_batch),
    "at least batch_size and frames_per_batch",
)


@dataclass(frozen=True, kw_only=True)
class ScheduleFields(RunConfig):
    """Settings of the learning rate over a run.

    Args:
        anneal_lr: Whether the learning rate falls to 0 at `total_frames`: true or linear for a line, cosine for half a
            wave of a cosine, false for a constant.
        warmup_frames: Number of frames in which the learning rate rises linearly from 0; all that is annealed begins to
            fall after them.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> ScheduleFields(anneal_lr="cosine", warmup_frames=1_000).anneal_lr
        'cosine'
    """

    anneal_lr: bool | str = annealed(default=False)
    warmup_frames: int = at_least(
        0, 0, where(lambda n, config: n < config.total_frames, "below total_frames ({total_frames})")
    )


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(ScheduleFields):
    """On-policy algorithm with an actor and a critic, for all kinds of actions.

    Args:
        frames_per_batch: Number of frames collected for each update; `num_envs` divides it.
        learning_rate: Learning rate of the optimizer.
        critic_coeff: Weight of the critic's loss.
        max_grad_norm: Norm to which gradients of actor and critic together are scaled down.
        num_cells: Widths of the hidden layers of actor and critic, as in [64,64].
        activation: Activation of hidden layers: tanh, relu, or auto for tanh without and relu with recurrent layers.
        ortho_init: Whether to begin with orthogonal weights, with a gain of sqrt(2) in hidden layers, 0.01 in the last
            one of the actor and 1 in that of the critic; otherwise with torch's.
        log_std_init: Logarithm of the standard deviation with which actions of floats are sampled at the beginning.
        state_independent_std: Whether these standard deviations are parameters of their own; otherwise outputs of the
            actor's network.
        policy: Kind of network: mlp, or with a memory lstm or gru, for environments that hide a part of their state.
            Actor and critic have one each.
        recurrent_size: Width of that memory.
        recurrent_layers: Number of its layers, one on the other.
        recurrent_horizon: Largest initial memory span of a unit, in steps; the units are spread between 1 and this
            number. Above 1 for tasks with long delays.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> OnPolicyConfig(env="Acrobot-v1").num_cells
        (64, 64)
    """

    renamed: ClassVar[Mapping[str, str]] = {
        "anneal": "anneal_lr",
        "anneal_clip": "anneal_clip_epsilon",
        "clip": "clip_epsilon",
        "discriminator_hidden": "discriminator_num_cells",
        "discriminator_minibatch_size": "discriminator_batch_size",
        "entropy_weight": "entropy_coeff",
        "gae_lambda": "lmbda",
        "hidden": "num_cells",
        "init_log_scale": "log_std_init",
        "state_independent_scale": "state_independent_std",
        "value_weight": "critic_coeff",
    }

    gamma: float = in_range(0, 1, 0.99, search=DISCOUNTS)
    num_envs: int = 8
    frames_per_batch: int = checked(1024, _WHOLE_ROUNDS)
    learning_rate: float = above(0, 1e-3, search="1e-5..1e-2:log")
    anneal_lr: bool | str = True
    critic_coeff: float = at_least(0, 0.5)
    max_grad_norm: float = above(0, 0.5, search="0.3..5:log")
    num_cells: tuple[int, ...] = widths((64, 64), search="[64,64],[128,128],[256,256]")
    activation: str = one_of(("tanh", "relu", "auto"), "auto")
    ortho_init: bool = True
    log_std_init: float = in_range(-5, 2, 0.0)
    state_independent_std: bool = True
    policy: str = one_of(POLICIES, "mlp")
    recurrent_size: int = above(0, 64)
    recurrent_layers: int = above(0, 1)
    recurrent_horizon: int = above(0, 1)


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(ScheduleFields):
    """Off-policy actor-critic.

    Args:
        frames_per_batch: Number of frames collected between two rounds of updates; `num_envs` divides it.
        utd_ratio: Number of gradient steps for each collected frame; a round has utd_ratio * frames_per_batch,
            rounded.
        batch_size: Number of transitions of one gradient step.
        buffer_size: Number of transitions that the replay buffer keeps.
        sampler: Sampler of the replay buffer, as for dqn; for example
            prioritized:alpha=0.6,beta=0.4.
        n_steps: Number of steps whose rewards are added up in the target.
        learning_starts: Number of frames before the first update, with random actions, or those of the policy of
            `init`.
        learning_rate: Learning rate of Adam, for actor and critics.
        tau: Share by which the target networks move towards the trained ones after each gradient step of the actor.
        num_cells: Widths of the hidden layers of all networks.
        activation: Activation of hidden layers: relu or tanh.
        max_grad_norm: Norm to which gradients of actor and critics are scaled down; 0 leaves them.
        dataset: A data set that minibatches are taken from in addition, SOURCE:NAME; see ``rl dataset``.
        offline_fraction: Part of each minibatch that is taken from it.
        init: Folder of a run whose networks training starts from: of cql or sac for sac, of td3-bc or td3 for td3.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> OffPolicyConfig(env="Pendulum-v1").batch_size
        256
    """

    renamed: ClassVar[Mapping[str, str]] = {
        "critic_hidden": "critic_num_cells",
        "critics": "num_qvalue_nets",
        "dropped": "top_quantiles_to_drop_per_net",
        "hidden": "num_cells",
        "minibatch_size": "batch_size",
        "n_step": "n_steps",
        "subset": "sub_sample_len",
        "target_tau": "tau",
        "updates_per_step": "utd_ratio",
    }

    env: str = "Pendulum-v1"
    total_frames: int = 20_000
    frames_per_batch: int = checked(64, _WHOLE_ROUNDS)
    utd_ratio: float = checked(
        1.0,
        where(
            lambda rate, config: rate * config.frames_per_batch >= 0.5,
            "so large that a round of frames_per_batch frames has a gradient step",
        ),
    )
    gamma: float = in_range(0, 1, 0.99, search=DISCOUNTS)
    batch_size: int = above(0, 256, search="64,128,256,512")
    buffer_size: int = checked(1_000_000, _FITS)
    sampler: str = checked(
        "random", where(lambda name, config: name == "random" or not config.dataset, "random with a data set")
    )
    n_steps: int = above(0, 1, where(lambda n, config: n == 1 or not config.dataset, "1 with a data set"))
    learning_starts: int = at_least(0, 1_000)
    learning_rate: float = above(0, 3e-4, search="1e-5..1e-2:log")
    tau: float = in_range(0, 1, 0.005, search="0.001..0.1:log")
    num_cells: tuple[int, ...] = widths((256, 256), search="[64,64],[128,128],[256,256],[400,300]")
    activation: str = one_of(("relu", "tanh"), "relu")
    max_grad_norm: float = at_least(0, 0.0)
    dataset: str = ""
    offline_fraction: float = in_range(0, 1, 0.5)
    init: str = ""


@dataclass(frozen=True, kw_only=True)
class SoftConfig(OffPolicyConfig):
    """Off-policy actor-critic with an entropy bonus, whose temperature is learned.

    Args:
        alpha_init: Temperature at the beginning.
        fixed_alpha: Whether the temperature stays at alpha_init.
        target_entropy: Entropy of the policy in nats that the temperature is learned for; auto is minus the number of
            action dimensions.

    Raises:
        ArgumentError: If a value is out of its range.
    """

    alpha_init: float = above(0, 1.0)
    fixed_alpha: bool = False
    target_entropy: float | str = checked(
        "auto", Rule(lambda nats: nats == "auto" or not isinstance(nats, str), "auto or a number of nats")
    )

    @property
    def temperature(self) -> dict[str, Any]:
        """The arguments of the loss that concern the temperature."""
        return {name: getattr(self, name) for name in ("alpha_init", "fixed_alpha", "target_entropy")}


@dataclass(frozen=True, kw_only=True)
class EnsembleFields(RunConfig):
    """Settings of a learned ensemble of probabilistic networks of the dynamics.

    Args:
        num_members: Number of networks of the ensemble.
        num_elites: Number of those that predict, which have the smallest errors on held out steps.
        model_num_cells: Widths of their hidden layers.
        model_learning_rate: Learning rate of AdamW for the ensemble.
        model_weight_decay: Weight decay of the ensemble.
        model_batch_size: Number of real steps of one gradient step of the ensemble.
        model_every: Number of frames between two fits of the ensemble.
        model_holdout: Share of the real steps that a fit holds out, to see when to end.
        model_patience: Number of passes over the data without a better member, after which a fit ends.
        model_max_epochs: Largest number of passes of a fit.
        termination: Rule by which episodes of the ensemble end, module:function: called with the TensorDict of a step
            ``[*B]``, it returns bool ``[*B, 1]``. Empty where episodes of the environment never end in a terminal
            state.

    Raises:
        ArgumentError: If a value is out of its range.
    """

    absent: ClassVar[tuple[str, ...]] = ("learners",)

    num_members: int = above(0, 7)
    num_elites: int = checked(
        5, where(lambda n, config: 0 < n <= config.num_members, "above 0, and at most num_members")
    )
    model_num_cells: tuple[int, ...] = widths((200, 200, 200, 200))
    model_learning_rate: float = above(0, 1e-3, search="1e-4..1e-2:log")
    model_weight_decay: float = at_least(0, 5e-5)
    model_batch_size: int = above(0, 256)
    model_every: int = above(0, 250)
    model_holdout: float = checked(0.2, Rule(lambda share: 0 < share < 1, "above 0 and below 1"))
    model_patience: int = above(0, 5)
    model_max_epochs: int = above(0, 100)
    termination: str = ""


@dataclass(frozen=True, kw_only=True)
class DeterministicConfig(OffPolicyConfig):
    """Off-policy actor-critic with a deterministic policy, which explores by noise on its actions.

    Args:
        noise: Kind of noise: normal, or ou for an Ornstein-Uhlenbeck process with theta 0.15 and time step 0.01, which
            is correlated from step to step.
        exploration_noise: Standard deviation of the noise (ou: volatility of the process), in half widths of the
            action's bounds.
        anneal_exploration_noise: Whether the noise falls to 0 at `total_frames`: true or linear for a line, cosine for
            half a wave of a cosine, false for a constant.

    Raises:
        ArgumentError: If a value is out of its range.
    """

    learning_rate: float = 1e-3
    noise: str = one_of(("normal", "ou"), "normal")
    exploration_noise: float = at_least(0, 0.1, search="0.05..0.5:log")
    anneal_exploration_noise: bool | str = annealed(default=False)


@dataclass(frozen=True, kw_only=True)
class QLearningConfig(ScheduleFields):
    """Deep Q-learning: replay buffer, target network, exploration; discrete actions only.

    Args:
        frames_per_batch: Number of frames collected between two rounds of updates; `num_envs` divides it.
        utd_ratio: Number of gradient steps for each collected frame; a round has utd_ratio * frames_per_batch,
            rounded.
        n_steps: Number of steps whose rewards a target adds up before it takes the value of a state.
        batch_size: Number of transitions of one gradient step.
        buffer_size: Number of transitions that the replay buffer keeps.
        sampler: Sampler of the replay buffer: NAME or module:callable, also with arguments, for example
            prioritized:alpha=0.6,beta=0.4 or 'prioritized:{alpha: 0.6, beta: 0.4}'.
        learning_starts: Number of frames before the first update.
        learning_rate: Learning rate of Adam.
        double_dqn: Whether the online network chooses the next action (double Q-learning).
        dueling: Whether to separate the value of a state from the advantages of the actions (Wang et al., 2016).
        noisy: Whether to explore by learned noise on the weights (Fortunato et al., 2018), with which no random actions
            are needed: set eps_init and eps_end to 0.
        tau: Share by which the target network moves towards the online one after every gradient step; 0
            copies it every `target_every` frames instead.
        target_every: Number of frames between two copies, if `tau` is 0.
        eps_init: Share of random actions at the beginning.
        eps_end: Share of random actions after annealing.
        annealing_num_steps: Number of frames over which it falls.
        anneal_eps: Whether it falls: true or linear for a line, cosine for half a wave of a cosine, false for a
            constant `eps_init`.
        max_grad_norm: Norm to which gradients are scaled down.
        num_cells: Widths of the hidden layers, as in [128,128].
        activation: Activation of hidden layers: tanh or relu.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> QLearningConfig(env="Acrobot-v1", gamma=0.98).env
        'Acrobot-v1'
    """

    renamed: ClassVar[Mapping[str, str]] = {
        "anneal": "anneal_lr",
        "double": "double_dqn",
        "epsilon_end": "eps_end",
        "epsilon_frames": "annealing_num_steps",
        "epsilon_start": "eps_init",
        "hidden": "num_cells",
        "minibatch_size": "batch_size",
        "mixing_width": "mixing_embed_dim",
        "n_step": "n_steps",
        "target_tau": "tau",
        "td_lambda": "lmbda",
        "updates_per_step": "utd_ratio",
    }

    total_frames: int = 50_000
    num_envs: int = 1
    frames_per_batch: int = checked(64, _WHOLE_ROUNDS)
    utd_ratio: float = checked(
        0.5,
        where(
            lambda rate, config: rate * config.frames_per_batch >= 1,
            lambda config: f"at least 1 / frames_per_batch ({1 / config.frames_per_batch:g})",
        ),
    )
    n_steps: int = above(0, 1)
    gamma: float = in_range(0, 1, 0.99, search=DISCOUNTS)
    batch_size: int = above(0, 64, search="32,64,128,256")
    buffer_size: int = checked(50_000, _FITS)
    sampler: str = "random"
    learning_starts: int = at_least(0, 1_000)
    learning_rate: float = above(0, 1e-3, search="1e-5..1e-2:log")
    double_dqn: bool = True
    dueling: bool = checked(
        False, where(lambda given, config: not given or bool(config.num_cells), "false without hidden layers")
    )
    noisy: bool = False
    tau: float = in_range(0, 1, 0.02, search="0.002..0.2:log")
    target_every: int = above(0, 500)
    eps_init: float = in_range(0, 1, 1.0)
    eps_end: float = in_range(
        0, 1, 0.05, where(lambda eps, config: eps <= config.eps_init, "at most eps_init"), search="0.01..0.2:log"
    )
    annealing_num_steps: int = above(0, 5_000, search="1000..50000:log")
    anneal_eps: bool | str = annealed(default=True)
    max_grad_norm: float = above(0, 10.0)
    num_cells: tuple[int, ...] = widths((128, 128), search="[64,64],[128,128],[256,256]")
    activation: str = one_of(("tanh", "relu"), "relu")


_AS_RECORDED = Rule(lambda given: not given, "left out: the data set is what it is")


@dataclass(frozen=True, kw_only=True)
class OfflineConfig(ScheduleFields):
    """Learning from a data set; the environment is used for evaluations alone.

    Args:
        dataset: Data set to learn from, SOURCE:NAME, such as minari:mujoco/hopper/expert-v0; see ``rl dataset``.
        total_frames: Number of gradient steps; other numbers of frames (eval_every, log_every, checkpoint_every,
            warmup_frames) are also those of gradient steps.
        batch_size: Number of transitions of one gradient step.
        learning_rate: Learning rate of Adam.
        num_cells: Widths of the hidden layers of all networks.
        activation: Activation of hidden layers: relu or tanh.
        tau: Share by which the target networks move towards the trained ones after each gradient step.
        max_grad_norm: Norm to which gradients are scaled down; 0 leaves them.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> OfflineConfig(env="Pendulum-v1", dataset="minari:pendulum/medium-v0").batch_size
        256
    """

    absent: ClassVar[tuple[str, ...]] = ("learners",)
    renamed: ClassVar[Mapping[str, str]] = {
        "context": "inference_context",
        "heads": "n_head",
        "hidden": "num_cells",
        "layers": "n_layer",
        "minibatch_size": "batch_size",
        "target_tau": "tau",
        "width": "n_embd",
    }

    env: str = "Pendulum-v1"
    dataset: str = ""
    total_frames: int = 50_000
    batch_size: int = above(0, 256, search="64,128,256,512")
    learning_rate: float = above(0, 3e-4, search="1e-5..1e-2:log")
    num_cells: tuple[int, ...] = widths((256, 256), search="[64,64],[128,128],[256,256],[400,300]")
    activation: str = one_of(("relu", "tanh"), "relu")
    tau: float = checked(0.005, Rule(lambda tau: 0 < tau <= 1, "in (0, 1]"))
    max_grad_norm: float = at_least(0, 0.0)
    normalize_observation: bool = checked(False, _AS_RECORDED)
    normalize_reward: bool = checked(False, _AS_RECORDED)
    clip_actions: bool = checked(False, _AS_RECORDED)
    atari: bool = checked(False, _AS_RECORDED)
    frame_stack: int = checked(1, Rule(lambda n: n == 1, "1: the data set is what it is"))
    workers: int = checked(0, Rule(lambda n: n == 0, "0: nothing is collected"))


@dataclass(frozen=True, kw_only=True)
class ChunkConfig(OfflineConfig):
    """A policy that plans chunks of actions.

    Args:
        chunk_size: Number of actions that are planned at once.
        replan_interval: Number of actions of a plan that are executed before the next plan.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> ChunkConfig(replan_interval=5)
        Traceback (most recent call last):
        ...
        rl.core.errors.ArgumentError: ChunkConfig: replan_interval must be from 1 to chunk_size (4), got 5
    """

    renamed: ClassVar[Mapping[str, str]] = {
        "decoder_layers": "num_decoder_layers",
        "diffusion_steps": "num_steps",
        "encoder_layers": "num_encoder_layers",
        "executed": "replan_interval",
        "heads": "nheads",
        "latent": "latent_dim",
        "width": "hidden_dim",
    }

    chunk_size: int = above(0, 4)
    replan_interval: int = checked(
        2, where(lambda n, config: 0 < n <= config.chunk_size, "from 1 to chunk_size ({chunk_size})")
    )


@dataclass(frozen=True, kw_only=True)
class GroupFields:
    """Settings of groups of agents.

    Args:
        share_params: Whether the agents of a group have the same parameters; else each has its own.
        report_group: Group whose mean reward is the reported return, in metrics and evaluations; the mean of all agents
            if empty.
        max_episode_steps: Number of steps after which episodes are truncated; 0 for the environment's own limit, if it
            has one.

    Attributes:
        multi_agent: Whether the environment has groups of agents.
        absent: Settings of one agent, which recipes of groups do not have.
    """

    multi_agent: ClassVar[bool] = True
    absent: ClassVar[tuple[str, ...]] = (
        "normalize_observation",
        "normalize_reward",
        "clip_actions",
        "frame_stack",
        "atari",
        "observation_layout",
        "observation_indices",
    )

    share_params: bool = True
    report_group: str = ""
    max_episode_steps: int = 100


_FULL_BATCH = where(
    lambda n, config: n >= config.batch_size * config.batch_length, "at least batch_size * batch_length"
)


@dataclass(frozen=True, kw_only=True)
class WorldModelConfig(ScheduleFields):
    """Learning of a model of the environment, from sequences of a replay buffer.

    `updates_per_step` and `train_ratio` are two units of one number, of which one is given: a gradient step replays
    ``batch_size * batch_length`` steps, so that ``train_ratio = updates_per_step * batch_size * batch_length``. A step
    is one of the agent: repetitions of an action do not count.

    Args:
        frames_per_batch: Number of frames collected between two rounds of updates; `num_envs` divides it.
        updates_per_step: Number of gradient steps for each collected frame; 0 derives it from train_ratio, and is 1
            where neither is given.
        train_ratio: Number of replayed steps for each collected frame, as in papers on DreamerV3; 0 derives it from
            updates_per_step.
        batch_size: Number of sequences of one gradient step.
        batch_length: Number of steps of a sequence.
        buffer_size: Number of steps that the replay buffer keeps.
        learning_starts: Number of frames before the first update.
        max_grad_norm: Norm to which the gradients of each optimizer are scaled down; 0 leaves them.

    Raises:
        ArgumentError: If a value is out of its range, or `updates_per_step` and `train_ratio` contradict each other.

    Example:
        >>> config = WorldModelConfig(batch_size=16, batch_length=64, train_ratio=512)
        >>> config.replay_rates
        (0.5, 512.0)
    """

    absent: ClassVar[tuple[str, ...]] = ("learners",)

    num_envs: int = 1
    frames_per_batch: int = checked(16, _WHOLE_ROUNDS)
    updates_per_step: float = at_least(0, 0.0)
    train_ratio: float = at_least(
        0,
        0.0,
        where(
            lambda ratio, config: (
                not ratio
                or not config.updates_per_step
                or abs(ratio - config.updates_per_step * config.batch_size * config.batch_length) <= 1e-6 * ratio
            ),
            "updates_per_step * batch_size * batch_length, or left out with updates_per_step",
        ),
    )
    gamma: float = in_range(0, 1, 0.99, search=DISCOUNTS)
    batch_size: int = above(0, 16, search="8,16,32")
    batch_length: int = above(1, 64)
    buffer_size: int = checked(100_000, _FULL_BATCH)
    learning_starts: int = at_least(0, 1_000)
    max_grad_norm: float = at_least(0, 0.0)

    @property
    def replay_rates(self) -> tuple[float, float]:
        """Gradient steps and replayed steps for each collected frame."""
        replayed = self.batch_size * self.batch_length
        updates = self.updates_per_step or self.train_ratio / replayed or 1.0
        return float(updates), float(self.train_ratio or updates * replayed)
