"""GAIL: imitation of a data set in the environment, with PPO on the rewards of a discriminator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.algorithms.ppo import PPOConfig, policy
from rl.trainers.config import Rule, above, at_least, checked, widths

_AS_RECORDED = Rule(lambda given: not given, "left out: the expert's steps are what they are")


@dataclass(frozen=True, kw_only=True)
class GAILConfig(PPOConfig):
    """Generative adversarial imitation: PPO whose rewards come from a discriminator of its steps and an expert's.

    Ho and Ermon, "Generative adversarial imitation learning", 2016, with PPO in place of TRPO, and the gradient penalty
    of Gulrajani et al., "Improved training of Wasserstein GANs", 2017. The rewards of the environment are only
    reported. For one choice and vectors of bounded floats, from vectors.

    Args:
        dataset: Steps of the expert, SOURCE:NAME, such as minari:mujoco/hopper/expert-v0; see ``rl dataset``.
        discriminator_updates: Number of gradient steps of the discriminator for each batch.
        discriminator_batch_size: Number of steps of the policy, and of the expert, in each of them.
        discriminator_learning_rate: Learning rate of Adam for the discriminator; constant.
        discriminator_num_cells: Widths of its hidden layers.
        gp_lambda: Weight of the gradient penalty; 0 for none.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> GAILConfig(env="Pendulum-v1", dataset="minari:pendulum/expert-v0").gp_lambda
        1.0
    """

    recipe: ClassVar[str] = "gail"
    absent: ClassVar[tuple[str, ...]] = ("learners",)  # whose discriminators would differ
    dataset: str = ""
    discriminator_updates: int = above(0, 10)
    discriminator_batch_size: int = above(0, 256)
    discriminator_learning_rate: float = above(0, 3e-4)
    discriminator_num_cells: tuple[int, ...] = widths((64, 64))
    gp_lambda: float = at_least(0, 1.0)
    normalize_observation: bool = checked(False, _AS_RECORDED)
    normalize_reward: bool = checked(False, _AS_RECORDED)
    clip_actions: bool = checked(False, _AS_RECORDED)
    atari: bool = checked(False, _AS_RECORDED)
    frame_stack: int = checked(1, Rule(lambda n: n == 1, "1: the expert's steps are what they are"))


def updater(config: GAILConfig, env: Any, actor: Any, critic: Any) -> Any:
    """PPO on the rewards of a discriminator, which is trained on each batch before.

    Raises:
        ArgumentError: If there is no data set.
        SpecError: If it does not fit the environment.
    """
    from rl.trainers.algorithms._discriminator import GAILUpdater

    return GAILUpdater(config, env, actor, critic)


GAIL = Algorithm(
    GAILConfig, loop="on_policy", policy=policy, updater=updater, presets="rl.trainers:presets/gail.yaml:gail"
)

train_gail = GAIL.train
