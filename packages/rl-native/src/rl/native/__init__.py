"""Compiled back ends for prioritized replay and returns on the CPU."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.native.__about__ import __version__
    from rl.native._library import isa, why_not
    from rl.native._priority_tree import NativePriorityTree
    from rl.native._returns import NativeRecurrence

__all__ = ["NativePriorityTree", "NativeRecurrence", "__version__", "isa", "why_not"]

__getattr__, __dir__ = lazy_exports(__name__)
