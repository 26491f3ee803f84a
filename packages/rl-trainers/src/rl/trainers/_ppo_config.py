"""Settings of the recipe ``ppo``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass

from rl.trainers._fields import check, in_range, one_of, positive
from rl.trainers._recipe import Recipe
from rl.trainers._run_config import RunConfig

__all__ = ["PPO", "PPOConfig"]


@dataclass(frozen=True)
class PPOConfig(RunConfig):
    """Proximal policy optimization with a clipped probability ratio.

    Schulman et al., "Proximal Policy Optimization Algorithms", 2017, with generalized advantage estimation
    (Schulman et al., 2016). The defaults solve CartPole-v1. For Pendulum-v1:
    ``num_envs=4, total_frames=100_000, frames_per_batch=4096, gamma=0.9``.

    Args:
        frames_per_batch: frames collected for each update; `num_envs` divides it.
        epochs: passes over each batch.
        minibatch_size: frames of one gradient step.
        learning_rate: of Adam.
        anneal: let the learning rate fall linearly to 0 at `total_frames`.
        gamma: discount of the return, per step.
        gae_lambda: decay of the advantage estimator; 0 trusts the critic, 1 the sampled returns.
        clip: how far the probability ratio may move from 1 before its gain is cut.
        value_weight: weight of the critic's loss.
        entropy_weight: weight of the entropy bonus.
        max_grad_norm: gradients of actor and critic together are scaled down to this norm.
        normalize_advantage: shift and scale the advantages of each minibatch to mean 0 and deviation 1.
        hidden: widths of the hidden layers of actor and critic, as in [64,64].
        activation: tanh or relu.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> PPOConfig(env="Acrobot-v1", gamma=0.98).env
        'Acrobot-v1'
    """

    total_frames: int = 80_000
    num_envs: int = 8
    frames_per_batch: int = 1024
    epochs: int = 10
    minibatch_size: int = 256
    learning_rate: float = 1e-3
    anneal: bool = True
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.0
    max_grad_norm: float = 0.5
    normalize_advantage: bool = True
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"

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
                "epochs": above_zero,
                "minibatch_size": (
                    lambda n: 1 < n <= self.frames_per_batch,
                    f"between 2 and frames_per_batch ({self.frames_per_batch})",
                ),
                "learning_rate": above_zero,
                "gamma": in_range(0, 1),
                "gae_lambda": in_range(0, 1),
                "clip": (lambda c: 0 < c < 1, "in (0, 1)"),
                "value_weight": (lambda w: w >= 0, "0 or more"),
                "entropy_weight": (lambda w: w >= 0, "0 or more"),
                "max_grad_norm": above_zero,
                "hidden": (lambda sizes: all(n > 0 for n in sizes), "widths above 0"),
                "activation": one_of("tanh", "relu"),
            },
        )


PPO = Recipe(
    name="ppo",
    config=PPOConfig,
    train="rl.trainers._ppo:train_ppo",
    policy="rl.trainers._ppo:ppo_policy",
)
