"""Settings of the recipe ``dqn``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import POLICIES, check, in_range, one_of, positive
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.q_learning._config import QLearningConfig

__all__ = ["DQN", "DQNConfig"]


@dataclass(frozen=True, kw_only=True)
class DQNConfig(QLearningConfig):
    """Deep Q-learning: replay buffer, target network, epsilon-greedy exploration; discrete actions only.

    Mnih et al., "Human-level control through deep reinforcement learning", 2015; double Q-learning after
    van Hasselt et al., 2016; recurrent policies learn from stored sequences after Kapturowski et al., "Recurrent
    Experience Replay in Distributed Reinforcement Learning", 2019. The defaults solve CartPole-v1.

    Args:
        n_step: steps whose rewards a target adds up before it takes the value of a state; 1 with a recurrent policy,
            which has td_lambda.
        minibatch_size: transitions of one gradient step; with a recurrent policy a multiple of sequence_length.
        buffer_size: transitions that the replay buffer keeps; with a recurrent policy whole batches of them.
        sampler: how the replay buffer chooses transitions: NAME, 'NAME:{key: value}' or module:callable, for example
            'prioritized:{alpha: 0.6, beta: 0.4}'; random with a recurrent policy.
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

    recipe: ClassVar[str] = "dqn"

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


DQN = Recipe.of(DQNConfig)
