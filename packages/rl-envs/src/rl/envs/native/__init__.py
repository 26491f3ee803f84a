"""Environments written in torch, batched."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.native._pendulum import PendulumEnv

__all__ = ["PendulumEnv"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "rl.envs.native._pendulum": ["PendulumEnv"],
    },
)
