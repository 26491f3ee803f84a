"""`check_env_specs`: the conformance check of rl-core, under the name that users of TensorDict environments know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl.core.errors import SpecError
from rl.core.testing import check_env_specs as check

if TYPE_CHECKING:
    from rl.core.interfaces import Env

__all__ = ["check_env_specs"]


def check_env_specs(env: Env, *, seed: int | None = None, steps: int = 3) -> None:
    """Compare a short random rollout with the specs, entry by entry.

    The environment is reset, and left in the middle of an episode.

    Args:
        env: any environment of the `rl.core.interfaces.Env` protocol.
        seed: for `set_seed`; not called if None.
        steps: length of the rollout.

    Raises:
        SpecError: one line for each entry that differs: key, expected, got.

    Example:
        >>> from rl.envs import PendulumEnv
        >>> check_env_specs(PendulumEnv())
    """
    try:
        check(env, seed=seed, steps=steps)
    except AssertionError as error:
        raise SpecError(str(error)) from error
