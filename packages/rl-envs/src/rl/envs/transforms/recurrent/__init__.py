"""Transforms for recurrent policies."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.envs.transforms.recurrent._primer import TensorDictPrimer, get_primers_from_module, gSDENoise

__all__ = [
    "TensorDictPrimer",
    "gSDENoise",
    "get_primers_from_module",
]

__getattr__, __dir__ = lazy_exports(__name__)
