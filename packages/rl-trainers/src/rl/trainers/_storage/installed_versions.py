"""Versions of the packages that a run used: recorded in its summary, never compared."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

__all__ = ["package_versions"]

_DISTRIBUTIONS = (
    "rl-core",
    "rl-envs",
    "rl-modules",
    "rl-collectors",
    "rl-replay",
    "rl-objectives",
    "rl-trainers",
    "torch",
    "tensordict",
    "gymnasium",
    "numpy",
)


def package_versions() -> dict[str, str]:
    """Version by distribution, and that of Python, of what takes part in training.

    Example:
        >>> "torch" in package_versions()
        True
    """
    found = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
