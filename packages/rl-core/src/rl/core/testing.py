"""Old name of `rl.testing`, which the distribution rl-testing installs; it is removed with the next series."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rl.core.errors import MissingExtraError

try:
    _testing = import_module("rl.testing")
except ModuleNotFoundError as error:
    if error.name != "rl.testing":
        raise
    raise MissingExtraError("rl.core.testing is the distribution rl-testing now: pip install rl-testing") from error


def __getattr__(name: str) -> Any:
    """Return a public name of `rl.testing`."""
    return getattr(_testing, name)


def __dir__() -> list[str]:
    return dir(_testing)
