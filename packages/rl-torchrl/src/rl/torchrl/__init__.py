"""TorchRL's module tree for code that was written for it, what is said about its names and arguments, and `rl migrate`.

``from rl.torchrl import envs`` and ``import rl.torchrl.objectives.value`` are the modules of TorchRL, whose names are
looked up in the packages of this toolkit when they are used. What cannot be offered raises, with the page to read.
"""

import sys
from typing import TYPE_CHECKING, Any

from rl.core.lazy import lazy_exports
from rl.torchrl._tree import Finder, look_up

if TYPE_CHECKING:
    from rl.torchrl.__about__ import __version__
    from rl.torchrl._envs import EnvBase, ObservationTransform, Transform
    from rl.torchrl._tree import install

__all__ = ["EnvBase", "ObservationTransform", "Transform", "__version__", "install"]

_own, __dir__ = lazy_exports(__name__)


def __getattr__(name: str) -> Any:
    return _own(name) if name in __all__ else look_up(__name__, "", name)


if not any(isinstance(finder, Finder) and finder.root == __name__ for finder in sys.meta_path):
    _finder: Any = Finder(__name__)
    sys.meta_path.append(_finder)
