"""Transforms of rewards."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.transforms.reward._reward_sum import RewardSum

__all__ = ["RewardSum"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "rl.envs.transforms.reward._reward_sum": ["RewardSum"],
    },
)
