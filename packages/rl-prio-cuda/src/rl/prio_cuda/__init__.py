"""Priority trees on CUDA devices, for prioritized replay that never leaves the GPU."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.prio_cuda.__about__ import __version__
    from rl.prio_cuda._library import why_not
    from rl.prio_cuda._tree import CudaPriorityTree

__all__ = ["CudaPriorityTree", "__version__", "why_not"]

__getattr__, __dir__ = lazy_exports(__name__)
