"""PPO: proximal policy optimization with a clipped probability ratio, for all kinds of actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.config import Rule, above, annealed, at_least, checked, in_range, where
from rl.trainers.families import OnPolicyConfig


@dataclass(frozen=True, kw_only=True)
class PPOConfig(OnPolicyConfig):
    """Proximal policy optimization with a clipped probability ratio.

    Schulman et al., "Proximal Policy Optimization Algorithms", 2017, with generalized advantage estimation
    (Schulman et al., 2016). The defaults solve CartPole-v1; presets contain settings for
    other environments (``rl presets ppo``). For CartPole-v1 without velocities:
    ``policy="lstm", observation_indices=(0, 2), total_frames=100_000, frames_per_batch=256, epochs=20, gamma=0.98,
    lmbda=0.8``.

    Args:
        epochs: Number of passes over each batch.
        minibatch_size: Number of frames of one gradient step; with a recurrent policy a multiple of sequence_length.
        anneal_clip_epsilon: Whether `clip_epsilon` falls to 0 as well: true or linear for a line, cosine for half a
            wave of a cosine.
        lmbda: Decay of the advantage estimator; 0 trusts the critic, 1 the sampled returns.
        clip_epsilon: Distance from 1 to which the probability ratio may move before its gain is cut.
        clip_value: Distance to which a value may move from the one of the collected batch before its loss is cut; 0 for
            any distance.
        entropy_coeff: Weight of the entropy bonus.
        target_kl: Approximate KL divergence that ends the epochs of a batch at a minibatch above 1.5 times it, without
            its gradient step, as in Stable-Baselines3; 0 for all epochs.
        normalize_advantage: Whether to shift and scale the advantages of each minibatch to mean 0 and deviation 1.
        sequence_length: Number of steps through which gradients of a recurrent policy flow; minibatches are made of
            such sequences, each from the state on that was stored with its first step. Divides the steps of an
            environment in a batch, frames_per_batch / num_envs.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> PPOConfig(env="Acrobot-v1", gamma=0.98).env
        'Acrobot-v1'
    """

    recipe: ClassVar[str] = "ppo"
    total_frames: int = 80_000
    frames_per_batch: int = checked(1024, search="512,1024,2048,4096")
    epochs: int = above(0, 10, search="3..20")
    minibatch_size: int = checked(
        256,
        where(
            lambda n, config: 1 < n <= config.frames_per_batch,
            "between 2 and frames_per_batch ({frames_per_batch})",
        ),
        where(
            lambda n, config: config.policy == "mlp" or n % max(config.sequence_length, 1) == 0,
            "a multiple of sequence_length ({sequence_length})",
        ),
        search="32,64,128,256,512",
    )
    anneal_clip_epsilon: bool | str = annealed(
        where(lambda given, config: not (given and config.compile), "false with compile=True"), default=False
    )
    lmbda: float = in_range(0, 1, 0.95, search="0.8..1")
    clip_epsilon: float = checked(0.2, Rule(lambda c: 0 < c < 1, "in (0, 1)"), search="0.1..0.4")
    clip_value: float = at_least(0, 0.0)
    entropy_coeff: float = at_least(0, 0.0, search="0..0.05")
    target_kl: float = at_least(0, 0.0)
    normalize_advantage: bool = True
    sequence_length: int = checked(
        32,
        where(
            lambda n, config: config.policy == "mlp" or (n > 0 and config.steps_per_batch % n == 0),
            "a divisor of frames_per_batch / num_envs ({steps_per_batch})",
        ),
    )

    @property
    def steps_per_batch(self) -> int:
        """Steps of an environment in a batch."""
        return self.frames_per_batch // self.num_envs

    @property
    def loss_settings(self) -> dict[str, Any]:
        """The arguments of the loss that are settings."""
        return {
            "clip_epsilon": self.clip_epsilon,
            "clip_value": self.clip_value or None,
            "entropy_coeff": self.entropy_coeff,
            "loss_critic_type": "l2",
            "normalize_advantage": self.normalize_advantage,
        }


def policy(config: OnPolicyConfig, env: Any) -> Any:
    """Create the untrained actor, for all kinds of actions.

    Raises:
        SpecError: If the environment's action is of a kind that is not trained.
    """
    from rl.trainers.actors import on_policy_actor

    return on_policy_actor(config, env)


def updater(config: PPOConfig, env: Any, actor: Any, critic: Any) -> Any:
    """Epochs of minibatches on the clipped loss, with generalized advantage estimation."""
    from functools import partial

    from rl.objectives import ClipPPOLoss
    from rl.objectives.value import GAE
    from rl.trainers.loops.updater import MinibatchUpdater

    del env
    loss = partial(ClipPPOLoss, actor, critic, **config.loss_settings)
    return MinibatchUpdater(config, loss, GAE(gamma=config.gamma, lmbda=config.lmbda, value_network=critic))


PPO = Algorithm(PPOConfig, loop="on_policy", policy=policy, updater=updater, presets="rl.trainers:presets/ppo.yaml:ppo")

train_ppo = PPO.train
