"""Gymnasium, or one sentence about how to get it."""

from __future__ import annotations

from rl.core.errors import MissingExtraError

try:
    import gymnasium
except ModuleNotFoundError as error:
    raise MissingExtraError('GymEnv needs Gymnasium, which is not installed: pip install "rl-envs[gym]"') from error

__all__ = ["gymnasium"]

if int(gymnasium.__version__.split(".", maxsplit=1)[0]) < 1:
    raise MissingExtraError(
        f"GymEnv needs Gymnasium 1.1 or later, found {gymnasium.__version__}: pip install -U 'rl-envs[gym]'"
    )
