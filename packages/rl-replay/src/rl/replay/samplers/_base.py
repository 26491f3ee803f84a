"""Base class of samplers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rl.replay._arguments import raise_no_priority
from rl.replay._state import Stateful

__all__ = ["SamplerBase"]


class SamplerBase(Stateful):
    """Base of samplers: without passes, priorities and a state, unless a subclass defines them."""

    ran_out: bool = False
    """Whether the last sample ended a pass."""

    def extended(self, index: Tensor, data: Any) -> None:
        """Follow a write of the rows `index` ``[n]``."""

    def update_priority(self, index: Tensor, priority: Tensor) -> None:  # noqa: ARG002  subclasses use them
        """Set the priorities ``[n]`` of rows ``[n]``.

        Raises:
            ContractError: if there are no priorities.
        """
        raise_no_priority(type(self).__name__)

    def restart(self) -> None:
        """Begin a new pass with the next sample."""

    def empty(self) -> None:
        """Forget all rows."""
