"""Settings of the recipes that plan several actions at once. Imports no torch, so that --help is fast."""

from __future__ import annotations

from dataclasses import dataclass

from rl.trainers._config.fields import check, positive
from rl.trainers.recipes.offline._config import OfflineConfig

__all__ = ["ChunkConfig"]


@dataclass(frozen=True, kw_only=True)
class ChunkConfig(OfflineConfig):
    """A policy that plans chunks of actions.

    Args:
        chunk_size: number of actions that are planned at once.
        executed: number of actions of a plan that are executed before the next plan.

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> ChunkConfig(executed=5)
        Traceback (most recent call last):
        ...
        rl.core.errors.SpecError: ChunkConfig: executed must be from 1 to chunk_size (4), got 5
    """

    chunk_size: int = 4
    executed: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self,
            {
                "chunk_size": (positive, "above 0"),
                "executed": (lambda n: 0 < n <= self.chunk_size, f"from 1 to chunk_size ({self.chunk_size})"),
            },
        )
