"""Settings of the recipe ``gail``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check, positive
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.ppo._config import PPOConfig

__all__ = ["GAIL", "GAILConfig"]


@dataclass(frozen=True, kw_only=True)
class GAILConfig(PPOConfig):
    """Generative adversarial imitation: PPO whose rewards come from a discriminator of its steps and an expert's.

    Ho and Ermon, "Generative adversarial imitation learning", 2016, with PPO in place of TRPO, and the gradient penalty
    of Gulrajani et al., "Improved training of Wasserstein GANs", 2017. The rewards of the environment are only
    reported. For one choice and vectors of bounded floats, from vectors.

    Args:
        dataset: steps of the expert, SOURCE:NAME, such as minari:mujoco/hopper/expert-v0; see ``rl dataset``.
        discriminator_updates: gradient steps of the discriminator for each batch.
        discriminator_minibatch_size: steps of the policy, and of the expert, in each of them.
        discriminator_learning_rate: of Adam, for the discriminator; constant.
        discriminator_hidden: widths of its hidden layers.
        gp_lambda: weight of the gradient penalty; 0 for none.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> GAILConfig(env="Pendulum-v1", dataset="minari:pendulum/expert-v0").gp_lambda
        1.0
    """

    recipe: ClassVar[str] = "gail"
    dataset: str = ""
    discriminator_updates: int = 10
    discriminator_minibatch_size: int = 256
    discriminator_learning_rate: float = 3e-4
    discriminator_hidden: tuple[int, ...] = (64, 64)
    gp_lambda: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero = (positive, "above 0")
        unset = (lambda given: not given, "left out: the expert's steps are what they are")
        check(
            self,
            {
                "discriminator_updates": above_zero,
                "discriminator_minibatch_size": above_zero,
                "discriminator_learning_rate": above_zero,
                "discriminator_hidden": (lambda sizes: all(n > 0 for n in sizes), "widths above 0"),
                "gp_lambda": (lambda w: w >= 0, "0 or more"),
                **dict.fromkeys(("normalize_observation", "normalize_reward", "clip_actions", "atari"), unset),
                "frame_stack": (lambda n: n == 1, "1: the expert's steps are what they are"),
            },
        )


GAIL = Recipe.of(GAILConfig)
