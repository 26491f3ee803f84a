"""Settings of the recipe ``ppo``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check, in_range, positive
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.on_policy._config import OnPolicyConfig

__all__ = ["PPO", "PPOConfig"]


@dataclass(frozen=True, kw_only=True)
class PPOConfig(OnPolicyConfig):
    """Proximal policy optimization with a clipped probability ratio.

    Schulman et al., "Proximal Policy Optimization Algorithms", 2017, with generalized advantage estimation
    (Schulman et al., 2016). The defaults solve CartPole-v1; presets contain settings for
    other environments (``rl presets ppo``). For CartPole-v1 without velocities:
    ``policy="lstm", observation_indices=(0, 2), total_frames=100_000, frames_per_batch=256, epochs=20, gamma=0.98,
    gae_lambda=0.8``.

    Args:
        epochs: passes over each batch.
        minibatch_size: frames of one gradient step; with a recurrent policy a multiple of sequence_length.
        anneal_clip: let `clip` fall linearly to 0 as well.
        gae_lambda: decay of the advantage estimator; 0 trusts the critic, 1 the sampled returns.
        clip: how far the probability ratio may move from 1 before its gain is cut.
        clip_value: how far a value may move from the one of the collected batch before its loss is cut; 0 for any
            distance.
        entropy_weight: weight of the entropy bonus.
        target_kl: the epochs of a batch stop at a minibatch whose approximate KL divergence is above 1.5 times this,
            without its gradient step, as in Stable-Baselines3; 0 for all epochs.
        normalize_advantage: shift and scale the advantages of each minibatch to mean 0 and deviation 1.
        sequence_length: steps through which gradients of a recurrent policy flow; minibatches are made of such
            sequences, each from the state on that was stored with its first step. Divides the steps of an environment
            in a batch, frames_per_batch / num_envs.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> PPOConfig(env="Acrobot-v1", gamma=0.98).env
        'Acrobot-v1'
    """

    recipe: ClassVar[str] = "ppo"
    total_frames: int = 80_000
    epochs: int = 10
    minibatch_size: int = 256
    anneal_clip: bool = False
    gae_lambda: float = 0.95
    clip: float = 0.2
    clip_value: float = 0.0
    entropy_weight: float = 0.0
    target_kl: float = 0.0
    normalize_advantage: bool = True
    sequence_length: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self,
            {
                "epochs": (positive, "above 0"),
                "minibatch_size": (
                    lambda n: 1 < n <= self.frames_per_batch,
                    f"between 2 and frames_per_batch ({self.frames_per_batch})",
                ),
                "gae_lambda": in_range(0, 1),
                "clip": (lambda c: 0 < c < 1, "in (0, 1)"),
                "anneal_clip": (lambda given: not (given and self.compile), "false with compile=True"),
                "clip_value": (lambda c: c >= 0, "0 or more"),
                "entropy_weight": (lambda w: w >= 0, "0 or more"),
                "target_kl": (lambda kl: kl >= 0, "0 or more"),
            },
        )
        if self.policy != "mlp":
            steps, length = self.frames_per_batch // self.num_envs, self.sequence_length
            check(
                self,
                {
                    "sequence_length": (
                        lambda n: n > 0 and steps % n == 0,
                        f"a divisor of frames_per_batch / num_envs ({steps})",
                    ),
                    "minibatch_size": (lambda n: n % max(length, 1) == 0, f"a multiple of sequence_length ({length})"),
                },
            )


PPO = Recipe.of(PPOConfig)
