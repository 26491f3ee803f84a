"""Random numbers of one VMAS environment, apart from those of all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["OwnRandomness"]


class OwnRandomness:
    """Random state for the calls of one environment.

    VMAS keeps one random state for all environments of a process, in a list of its class; each call swaps it with
    the global states of torch, NumPy and Python. Here that list holds the state of one environment during a call.

    Args:
        holder: the class that has the list.
    """

    def __init__(self, holder: Any) -> None:
        self._holder = holder
        self._own = holder.vmas_random_state[:]

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of VMAS, which continues the own state."""
        shared = self._holder.vmas_random_state
        others = shared[:]
        shared[:] = self._own
        try:
            return function(*args, **kwargs)
        finally:
            self._own = shared[:]
            shared[:] = others
