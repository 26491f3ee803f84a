"""Warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings

__all__ = ["issue_warning"]


def issue_warning(message: str, category: type[Warning]) -> None:
    """Issue a warning that points at the first caller outside the toolkit."""
    level, frame = 2, sys._getframe(1)  # noqa: SLF001  as `warnings` itself
    while frame is not None and frame.f_globals.get("__name__", "").startswith("rl."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
