"""Settings of the recipes of deep Q-learning. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass

from rl.core.errors import SpecError
from rl.trainers._config.config import RunConfig
from rl.trainers._config.fields import check, in_range, one_of, positive

__all__ = ["QLearningConfig"]


@dataclass(frozen=True, kw_only=True)
class QLearningConfig(RunConfig):
    """Deep Q-learning: replay buffer, target network, exploration; discrete actions only.

    Args:
        frames_per_batch: frames collected between two rounds of updates; `num_envs` divides it.
        updates_per_step: gradient steps for each collected frame; a round has updates_per_step * frames_per_batch,
            rounded.
        n_step: steps whose rewards a target adds up before it takes the value of a state.
        minibatch_size: transitions of one gradient step.
        buffer_size: transitions that the replay buffer keeps.
        sampler: how the replay buffer chooses transitions: NAME, 'NAME:{key: value}' or module:callable, for example
            'prioritized:{alpha: 0.6, beta: 0.4}'.
        learning_starts: frames before the first update.
        learning_rate: of Adam.
        anneal: let the learning rate fall linearly to 0 at `total_frames`.
        double: choose the next action with the online network (double Q-learning).
        dueling: separate the value of a state from the advantages of the actions (Wang et al., 2016).
        noisy: explore by learned noise on the weights (Fortunato et al., 2018), with which no random actions are
            needed: set epsilon_start and epsilon_end to 0.
        target_tau: the target network moves this far towards the online one after every gradient step; 0
            copies it whole every `target_every` frames instead.
        target_every: frames between two copies, if `target_tau` is 0.
        epsilon_start: share of random actions at the beginning.
        epsilon_end: share of random actions after annealing.
        epsilon_frames: frames over which it falls linearly.
        max_grad_norm: gradients are scaled down to this norm.
        hidden: widths of the hidden layers, as in [128,128].
        activation: tanh or relu.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> QLearningConfig(env="Acrobot-v1", gamma=0.98).env
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
    dueling: bool = False
    noisy: bool = False
    target_tau: float = 0.02
    target_every: int = 500
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_frames: int = 5_000
    max_grad_norm: float = 10.0
    hidden: tuple[int, ...] = (128, 128)
    activation: str = "relu"

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
                "dueling": (lambda given: not given or bool(self.hidden), "false without hidden layers"),
                "target_tau": in_range(0, 1),
                "target_every": above_zero,
                "epsilon_start": in_range(0, 1),
                "epsilon_end": in_range(0, 1),
                "epsilon_frames": above_zero,
                "max_grad_norm": above_zero,
                "hidden": (lambda sizes: all(n > 0 for n in sizes), "widths above 0"),
                "activation": one_of("tanh", "relu"),
            },
        )

    def check_atoms(self, v_min: float, v_max: float) -> None:
        """Raise a SpecError unless there is a range of returns between two bounds."""
        if not v_min < v_max:
            raise SpecError(f"v_min={v_min} must be below v_max={v_max}")
