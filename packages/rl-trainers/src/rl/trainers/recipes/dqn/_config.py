"""Settings of the recipe ``dqn``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass

from rl.trainers._config.config import RunConfig
from rl.trainers._config.fields import POLICIES, check, in_range, one_of, positive
from rl.trainers._config.recipe import Recipe

__all__ = ["DQN", "DQNConfig"]


@dataclass(frozen=True, kw_only=True)
class DQNConfig(RunConfig):
    """Deep Q-learning: replay buffer, target network, epsilon-greedy exploration; discrete actions only.

    Mnih et al., "Human-level control through deep reinforcement learning", 2015; double Q-learning after
    van Hasselt et al., 2016; recurrent policies learn from stored sequences after Kapturowski et al., "Recurrent
    Experience Replay in Distributed Reinforcement Learning", 2019. The defaults solve CartPole-v1.

    Args:
        frames_per_batch: frames collected between two rounds of updates; `num_envs` divides it.
        updates_per_step: gradient steps for each collected frame; a round has updates_per_step * frames_per_batch,
            rounded.
        n_step: steps whose rewards a target adds up before it takes the value of a state; 1 with a recurrent policy,
            which has td_lambda.
        minibatch_size: transitions of one gradient step; with a recurrent policy a multiple of sequence_length.
        buffer_size: transitions that the replay buffer keeps; with a recurrent policy whole batches of them.
        sampler: how the replay buffer chooses transitions: NAME, 'NAME:{key: value}' or module:callable, for example
            'prioritized:{alpha: 0.6, beta: 0.4}'; random with a recurrent policy.
        learning_starts: frames before the first update.
        learning_rate: of Adam.
        anneal: let the learning rate fall linearly to 0 at `total_frames`.
        double: choose the next action with the online network (double Q-learning).
        target_tau: the target network moves this far towards the online one after every gradient step; 0
            copies it whole every `target_every` frames instead.
        target_every: frames between two copies, if `target_tau` is 0.
        epsilon_start: share of random actions at the beginning.
        epsilon_end: share of random actions after annealing.
        epsilon_frames: frames over which it falls linearly.
        max_grad_norm: gradients are scaled down to this norm.
        hidden: widths of the hidden layers, as in [128,128].
        activation: tanh or relu.
        policy: mlp, or with a memory lstm or gru: for environments that hide a part of their state.
        recurrent_size: width of that memory.
        recurrent_layers: its layers, one on the other.
        recurrent_horizon: largest initial memory span of a unit, in steps; the units are spread between 1 and this
            number. Above 1 for tasks with long delays.
        sequence_length: steps of a sampled sequence that a recurrent policy learns from.
        burn_in: steps before these, used only to update the stored recurrent state.
        td_lambda: weight of longer returns in the targets of a recurrent policy; 0 looks one step ahead, 1 to the end
            of the sequence.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> DQNConfig(env="Acrobot-v1", gamma=0.98).env
        'Acrobot-v1'
    """

    total_frames: int = 50_000
    num_envs: int = 1
    frames_per_batch: int = 64
    updates_per_step: float = 0.5
    n_step: int = 1
    minibatch_size: int = 64
    buffer_size: int = 50_000
    sampler: str = "random"
    learning_starts: int = 1_000
    learning_rate: float = 1e-3
    anneal: bool = False
    double: bool = True
    target_tau: float = 0.02
    target_every: int = 500
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_frames: int = 5_000
    max_grad_norm: float = 10.0
    hidden: tuple[int, ...] = (128, 128)
    activation: str = "relu"
    policy: str = "mlp"
    recurrent_size: int = 64
    recurrent_layers: int = 1
    recurrent_horizon: int = 1
    sequence_length: int = 16
    burn_in: int = 8
    td_lambda: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero = (positive, "above 0")
        check(
            self,
            {
                "frames_per_batch": (
                    lambda n: n > 0 and n % self.num_envs == 0,
                    f"a multiple of num_envs ({self.num_envs})",
                ),
                "updates_per_step": (
                    lambda rate: rate * self.frames_per_batch >= 1,
                    f"at least 1 / frames_per_batch ({1 / self.frames_per_batch:g})",
                ),
                "n_step": above_zero,
                "minibatch_size": above_zero,
                "buffer_size": (
                    lambda n: n >= max(self.minibatch_size, self.frames_per_batch),
                    "at least minibatch_size and frames_per_batch",
                ),
                "learning_starts": (lambda n: n >= 0, "0 or more"),
                "learning_rate": above_zero,
                "target_tau": in_range(0, 1),
                "target_every": above_zero,
                "epsilon_start": in_range(0, 1),
                "epsilon_end": in_range(0, 1),
                "epsilon_frames": above_zero,
                "max_grad_norm": above_zero,
                "hidden": (lambda sizes: all(n > 0 for n in sizes), "widths above 0"),
                "activation": one_of("tanh", "relu"),
                "policy": one_of(*POLICIES),
                "recurrent_size": above_zero,
                "recurrent_layers": above_zero,
                "recurrent_horizon": above_zero,
                "sequence_length": above_zero,
                "burn_in": (lambda n: n >= 0, "0 or more"),
                "td_lambda": in_range(0, 1),
            },
        )
        if self.policy != "mlp":
            length, batch = self.sequence_length, self.frames_per_batch
            stored = (self.buffer_size - self.buffer_size % batch) // self.num_envs
            check(
                self,
                {
                    "n_step": (lambda n: n == 1, f"1 with policy={self.policy}, which has td_lambda"),
                    "sampler": (lambda name: name == "random", f"random with policy={self.policy}"),
                    "minibatch_size": (lambda n: n % length == 0, f"a multiple of sequence_length ({length})"),
                    "burn_in": (
                        lambda n: n + length <= stored,
                        f"so short that with sequence_length ({length}) it fits into the {stored} steps of an"
                        " environment that the buffer keeps",
                    ),
                },
            )


DQN = Recipe(
    name="dqn",
    config=DQNConfig,
    train="rl.trainers.recipes.dqn._train:train_dqn",
    policy="rl.trainers.recipes.dqn._train:dqn_policy",
    presets="rl.trainers.recipes.dqn:presets.yaml",
)
