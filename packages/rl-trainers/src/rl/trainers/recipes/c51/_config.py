"""Settings of the recipe ``c51``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.q_learning._config import QLearningConfig

__all__ = ["C51", "C51Config"]


@dataclass(frozen=True, kw_only=True)
class C51Config(QLearningConfig):
    """Deep Q-learning of the distribution of returns over fixed atoms; discrete actions only.

    Bellemare et al., "A distributional perspective on reinforcement learning", 2017. The defaults solve CartPole-v1;
    for Atari games with clipped rewards the paper has ``v_min=-10, v_max=10, atoms=51``.

    Args:
        v_min: smallest return that the atoms stand for; smaller ones count as this.
        v_max: largest return that the atoms stand for.
        atoms: number of atoms.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> C51Config(env="Acrobot-v1").atoms
        101
    """

    recipe: ClassVar[str] = "c51"

    v_min: float = -100.0
    v_max: float = 100.0
    atoms: int = 101

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_atoms(self.v_min, self.v_max)
        check(self, {"atoms": (lambda n: n > 1, "2 or more")})


C51 = Recipe.of(C51Config)
