"""Worker processes and threads that execute commands, and tensors in memory that they share with their parent."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.core.workers._base import Undivided
    from rl.core.workers._group import WorkerGroup
    from rl.core.workers._memory import SharedLeaves, layout_of, write_leaves
    from rl.core.workers._serve import ThreadGroup, import_ray, packed, start_ray, unpacked

__all__ = [
    "SharedLeaves",
    "ThreadGroup",
    "Undivided",
    "WorkerGroup",
    "import_ray",
    "layout_of",
    "packed",
    "start_ray",
    "unpacked",
    "write_leaves",
]

__getattr__, __dir__ = lazy_exports(__name__)
