"""Settings of the recipe ``ppo``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass

from rl.trainers._config.config import RunConfig
from rl.trainers._config.fields import POLICIES, check, in_range, one_of, positive
from rl.trainers._config.recipe import Recipe

__all__ = ["PPO", "PPOConfig"]


@dataclass(frozen=True, kw_only=True)
class PPOConfig(RunConfig):
    """Proximal policy optimization with a clipped probability ratio.

    Schulman et al., "Proximal Policy Optimization Algorithms", 2017, with generalized advantage estimation
    (Schulman et al., 2016). The defaults solve CartPole-v1; presets contain settings for
    other environments (``rl presets ppo``). For CartPole-v1 without velocities:
    ``policy="lstm", observation_indices=(0, 2), total_frames=100_000, frames_per_batch=256, epochs=20, gamma=0.98,
    gae_lambda=0.8``.

    Args:
        frames_per_batch: frames collected for each update; `num_envs` divides it.
        epochs: passes over each batch.
        minibatch_size: frames of one gradient step; with a recurrent policy a multiple of sequence_length.
        learning_rate: of Adam.
        anneal: let the learning rate fall linearly to 0 at `total_frames`.
        anneal_clip: let `clip` fall linearly to 0 as well.
        gae_lambda: decay of the advantage estimator; 0 trusts the critic, 1 the sampled returns.
        clip: how far the probability ratio may move from 1 before its gain is cut.
        clip_value: how far a value may move from the one of the collected batch before its loss is cut; 0 for any
            distance.
        value_weight: weight of the critic's loss.
        entropy_weight: weight of the entropy bonus.
        max_grad_norm: gradients of actor and critic together are scaled down to this norm.
        normalize_advantage: shift and scale the advantages of each minibatch to mean 0 and deviation 1.
        hidden: widths of the hidden layers of actor and critic, as in [64,64].
        activation: tanh, relu, or auto for tanh without and relu with recurrent layers.
        ortho_init: begin with orthogonal weights, with a gain of sqrt(2) in hidden layers, 0.01 in the last one of the
            actor and 1 in that of the critic; otherwise with torch's.
        init_log_scale: logarithm of the standard deviation with which actions of floats are sampled at the beginning.
        state_independent_scale: these standard deviations are parameters of their own; otherwise outputs of the actor's
            network.
        policy: mlp, or with a memory lstm or gru: for environments that hide a part of their state. Actor and critic
            have one each.
        recurrent_size: width of that memory.
        recurrent_layers: its layers, one on the other.
        recurrent_horizon: largest initial memory span of a unit, in steps; the units are spread between 1 and this
            number. Above 1 for tasks with long delays.
        sequence_length: steps through which gradients of a recurrent policy flow; minibatches are made of such
            sequences, each from the state on that was stored with its first step. Divides the steps of an environment
            in a batch, frames_per_batch / num_envs.

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
    anneal_clip: bool = False
    gae_lambda: float = 0.95
    clip: float = 0.2
    clip_value: float = 0.0
    value_weight: float = 0.5
    entropy_weight: float = 0.0
    max_grad_norm: float = 0.5
    normalize_advantage: bool = True
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "auto"
    ortho_init: bool = True
    init_log_scale: float = 0.0
    state_independent_scale: bool = True
    policy: str = "mlp"
    recurrent_size: int = 64
    recurrent_layers: int = 1
    recurrent_horizon: int = 1
    sequence_length: int = 32

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
                "gae_lambda": in_range(0, 1),
                "clip": (lambda c: 0 < c < 1, "in (0, 1)"),
                "anneal_clip": (lambda given: not (given and self.compile), "false with compile=True"),
                "clip_value": (lambda c: c >= 0, "0 or more"),
                "init_log_scale": in_range(-5, 2),
                "value_weight": (lambda w: w >= 0, "0 or more"),
                "entropy_weight": (lambda w: w >= 0, "0 or more"),
                "max_grad_norm": above_zero,
                "hidden": (lambda sizes: all(n > 0 for n in sizes), "widths above 0"),
                "activation": one_of("tanh", "relu", "auto"),
                "policy": one_of(*POLICIES),
                "recurrent_size": above_zero,
                "recurrent_layers": above_zero,
                "recurrent_horizon": above_zero,
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


PPO = Recipe(
    name="ppo",
    config=PPOConfig,
    train="rl.trainers.recipes.ppo._train:train_ppo",
    policy="rl.trainers.recipes.ppo._train:ppo_policy",
    presets="rl.trainers.recipes.ppo:presets.yaml",
)
