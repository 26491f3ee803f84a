"""Settings of the recipe ``dt``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check, in_range, one_of, positive
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.offline._config import OfflineConfig

__all__ = ["DT", "DTConfig"]


@dataclass(frozen=True, kw_only=True)
class DTConfig(OfflineConfig):
    """Decision transformer: actions for a wanted return; bounded continuous actions.

    Chen et al., "Decision transformer: reinforcement learning via sequence modeling", 2021; with stochastic Zheng et
    al., "Online decision transformer", 2022, before its online phase.

    Args:
        context: steps that the policy sees.
        target_return: wanted return of an episode; the best one of the data set if left out.
        width: of a token, a multiple of heads.
        layers: of the transformer.
        heads: of each attention.
        dropout: of attentions and hidden layers, in training.
        stochastic: a tanh-normal policy that maximizes the likelihood of actions, with an entropy bonus.
        minibatch_size: windows of one gradient step.
        hidden: left out; the hidden layer of the transformer is four times as wide as a token.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> DTConfig(dataset="minari:pendulum/medium-v0").recipe
        'dt'
    """

    recipe: ClassVar[str] = "dt"
    own_transforms: ClassVar[tuple[str, ...]] = ("reward-sum",)

    context: int = 10
    target_return: float | None = None
    width: int = 64
    layers: int = 2
    heads: int = 2
    dropout: float = 0.0
    stochastic: bool = False
    learning_rate: float = 5e-4
    total_frames: int = 5_000
    minibatch_size: int = 64
    max_grad_norm: float = 0.25
    hidden: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero = (positive, "above 0")
        check(
            self,
            {
                **dict.fromkeys(("context", "layers", "heads"), above_zero),
                "width": (lambda n: n > 0 and n % self.heads == 0, f"a multiple of heads ({self.heads})"),
                "dropout": in_range(0, 0.99),
                "hidden": (lambda sizes: not sizes, "left out: set width and layers"),
                "activation": one_of("relu", "tanh"),
            },
        )


DT = Recipe.of(DTConfig)
