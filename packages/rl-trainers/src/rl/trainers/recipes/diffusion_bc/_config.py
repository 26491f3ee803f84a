"""Settings of the recipe ``diffusion-bc``. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rl.trainers._config.fields import check, positive
from rl.trainers._config.recipe import Recipe
from rl.trainers.recipes.offline._config_chunks import ChunkConfig

__all__ = ["DIFFUSION_BC", "DiffusionBCConfig"]


@dataclass(frozen=True, kw_only=True)
class DiffusionBCConfig(ChunkConfig):
    """Diffusion policy: imitates a data set with a model that denoises actions; bounded continuous actions.

    Chi et al., "Diffusion policy: visuomotor policy learning via action diffusion", 2023.

    Args:
        diffusion_steps: steps of the diffusion in training.
        sampling_steps: steps that denoise when acting, as in Song et al., "Denoising diffusion implicit models", 2021.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> DiffusionBCConfig(dataset="minari:pendulum/medium-v0").recipe
        'diffusion-bc'
    """

    recipe: ClassVar[str] = "diffusion-bc"

    learning_rate: float = 1e-3
    minibatch_size: int = 512
    total_frames: int = 5_000
    diffusion_steps: int = 20
    sampling_steps: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self,
            {
                "diffusion_steps": (positive, "above 0"),
                "sampling_steps": (
                    lambda n: 0 < n <= self.diffusion_steps,
                    f"from 1 to diffusion_steps ({self.diffusion_steps})",
                ),
            },
        )


DIFFUSION_BC = Recipe.of(DiffusionBCConfig)
