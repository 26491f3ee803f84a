"""Settings of the off-policy actor-critic recipes. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rl.trainers._config.config import RunConfig
from rl.trainers._config.fields import check, in_range, one_of, positive

__all__ = ["DeterministicConfig", "OffPolicyConfig", "SoftConfig"]


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(RunConfig):
    """Off-policy actor-critic.

    Args:
        frames_per_batch: frames collected between two rounds of updates; `num_envs` divides it.
        updates_per_step: gradient steps for each collected frame; a round has updates_per_step * frames_per_batch,
            rounded.
        minibatch_size: transitions of one gradient step.
        buffer_size: transitions that the replay buffer keeps.
        sampler: how the replay buffer chooses transitions, as for dqn; for example
            'prioritized:{alpha: 0.6, beta: 0.4}'.
        n_step: steps whose rewards are added up in the target.
        learning_starts: frames before the first update, with random actions, or those of the policy of `init`.
        learning_rate: of Adam, for actor and critics.
        target_tau: the target networks move this far towards the trained ones after each gradient step of the actor.
        hidden: widths of the hidden layers of all networks.
        activation: relu or tanh.
        max_grad_norm: gradients of actor and critics are scaled down to this norm; 0 leaves them.
        dataset: a data set that minibatches are taken from in addition, SOURCE:NAME; see ``rl dataset``.
        offline_fraction: part of each minibatch that is taken from it.
        init: folder of a run whose networks training starts from: of cql or sac for sac, of td3-bc or td3 for td3.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> OffPolicyConfig(env="Pendulum-v1").minibatch_size
        256
    """

    env: str = "Pendulum-v1"
    total_frames: int = 20_000
    frames_per_batch: int = 64
    updates_per_step: float = 1.0
    minibatch_size: int = 256
    buffer_size: int = 1_000_000
    sampler: str = "random"
    n_step: int = 1
    learning_starts: int = 1_000
    learning_rate: float = 3e-4
    target_tau: float = 0.005
    hidden: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    max_grad_norm: float = 0.0
    dataset: str = ""
    offline_fraction: float = 0.5
    init: str = ""

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
                    lambda x: x * self.frames_per_batch >= 0.5,
                    "so large that a round of frames_per_batch frames has a gradient step",
                ),
                "minibatch_size": above_zero,
                "buffer_size": (
                    lambda n: n >= max(self.minibatch_size, self.frames_per_batch),
                    "at least minibatch_size and frames_per_batch",
                ),
                "n_step": above_zero,
                "learning_starts": (lambda n: n >= 0, "0 or more"),
                "learning_rate": above_zero,
                "target_tau": in_range(0, 1),
                "hidden": (lambda sizes: all(n > 0 for n in sizes), "widths above 0"),
                "activation": one_of("relu", "tanh"),
                "max_grad_norm": (lambda norm: norm >= 0, "0 or more"),
                "offline_fraction": in_range(0, 1),
            },
        )
        if self.dataset:
            check(
                self,
                {
                    "sampler": (lambda name: name == "random", "random with a data set"),
                    "n_step": (lambda n: n == 1, "1 with a data set"),
                },
            )


@dataclass(frozen=True, kw_only=True)
class SoftConfig(OffPolicyConfig):
    """Off-policy actor-critic with an entropy bonus, whose temperature is learned.

    Args:
        alpha_init: first temperature.
        fixed_alpha: keep it.
        target_entropy: entropy of the policy in nats that the temperature is learned for; auto is minus the number of
            action dimensions.

    Raises:
        SpecError: if a value is out of its range.
    """

    alpha_init: float = 1.0
    fixed_alpha: bool = False
    target_entropy: float | str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self,
            {
                "alpha_init": (positive, "above 0"),
                "target_entropy": (lambda x: x == "auto" or not isinstance(x, str), "auto or a number of nats"),
            },
        )

    @property
    def temperature(self) -> dict[str, Any]:
        """The arguments of the loss that concern the temperature."""
        return {name: getattr(self, name) for name in ("alpha_init", "fixed_alpha", "target_entropy")}


@dataclass(frozen=True, kw_only=True)
class DeterministicConfig(OffPolicyConfig):
    """Off-policy actor-critic with a deterministic policy, which explores by noise on its actions.

    Args:
        noise: normal, or ou for an Ornstein-Uhlenbeck process with theta 0.15 and time step 0.01, which is correlated
            from step to step.
        exploration_noise: standard deviation of the noise (ou: volatility of the process), in half widths of the
            action's bounds.

    Raises:
        SpecError: if a value is out of its range.
    """

    learning_rate: float = 1e-3
    noise: str = "normal"
    exploration_noise: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self,
            {"noise": one_of("normal", "ou"), "exploration_noise": (lambda x: x >= 0, "0 or more")},
        )
