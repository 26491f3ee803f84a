"""What is said when an environment cannot continue exactly where it was."""

from __future__ import annotations

import warnings

__all__ = ["warn_not_restorable"]


def warn_not_restorable(who: str, why: str = "it cannot say where it stands within an episode") -> None:
    """Warn that a continuation is not exact."""
    warnings.warn(
        f"{who} is not restored exactly: {why}. The episode under way is lost: reset before the next step. What follows"
        " is valid experience, but not the one that an uninterrupted run would have seen",
        UserWarning,
        stacklevel=3,
    )
