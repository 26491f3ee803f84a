"""A short rollout against the specs."""

from __future__ import annotations

from rl.core.arguments import foreign_arguments
from rl.core.interfaces import Env
from rl.core.testing.env._entries import require_flags, require_in_specs

__all__ = ["check_env_specs"]


@foreign_arguments(
    needless={
        "return_contiguous": ("needless: results are compared as they come", ...),
        "check_dtype": ("needless: dtypes always have to agree", True),
        "tensordict": ("not available yet: use a reset without arguments", None),
        "break_when_any_done": ("needless: what is done is reset", ...),
    }
)
def check_env_specs(env: Env, *, seed: int | None = None, steps: int = 3) -> None:
    """Compare a reset and a few random steps with the specs, entry by entry.

    Args:
        env: any environment of the protocol; left within an episode.
        seed: for `set_seed`; not called if None.
        steps: how many.

    Raises:
        CheckError: an `AssertionError` with one line for each entry that differs: key, expected, got.

    Example:
        >>> from rl.core.testing import CountingEnv
        >>> check_env_specs(CountingEnv())
    """
    owner = type(env).__name__
    if seed is not None:
        env.set_seed(seed)
    td = env.reset()
    require_in_specs(td, [env.observation_spec, env.full_done_spec], env, f"{owner}.reset")
    require_flags(td, env, f"{owner}.reset")
    for _ in range(steps):
        td.update(env.full_action_spec.rand())
        stepped, td = env.step_and_maybe_reset(td)
        outcome = stepped.get("next")
        require_in_specs(
            outcome, [env.observation_spec, env.full_reward_spec, env.full_done_spec], env, f"'next' of {owner}.step"
        )
        require_flags(outcome, env, f"'next' of {owner}.step")
