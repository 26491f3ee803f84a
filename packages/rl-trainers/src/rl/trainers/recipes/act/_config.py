"""Settings of the recipe ``act``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check, in_range, positive
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.offline._config_chunks import ChunkConfig

__all__ = ["ACT", "ACTConfig"]


@dataclass(frozen=True, kw_only=True)
class ACTConfig(ChunkConfig):
    """Action chunking with transformers: imitates chunks of actions; bounded continuous actions.

    Zhao et al., "Learning fine-grained bimanual manipulation with low-cost hardware", 2023.

    Args:
        kl_weight: weight of the divergence of the style from its prior.
        width: of a token, an even multiple of heads.
        heads: of each attention.
        encoder_layers: of the encoder, which is used in training only.
        decoder_layers: of the decoder.
        latent: width of the style.
        dropout: in training.
        hidden: left out; the hidden layers of the transformer are four times as wide as a token.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> ACTConfig(dataset="minari:pendulum/medium-v0").recipe
        'act'
    """

    recipe: ClassVar[str] = "act"

    kl_weight: float = 10.0
    width: int = 64
    heads: int = 4
    encoder_layers: int = 1
    decoder_layers: int = 1
    latent: int = 8
    dropout: float = 0.0
    learning_rate: float = 1e-3
    total_frames: int = 5_000
    minibatch_size: int = 64
    hidden: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self,
            {
                **dict.fromkeys(("heads", "encoder_layers", "decoder_layers", "latent"), (positive, "above 0")),
                "kl_weight": (lambda w: w >= 0, "0 or more"),
                "width": (
                    lambda n: n > 0 and n % self.heads == 0 and n % 2 == 0,
                    f"even, and a multiple of heads ({self.heads})",
                ),
                "dropout": in_range(0, 0.99),
                "hidden": (lambda sizes: not sizes, "left out: set width, encoder_layers and decoder_layers"),
            },
        )


ACT = Recipe.of(ACTConfig)
