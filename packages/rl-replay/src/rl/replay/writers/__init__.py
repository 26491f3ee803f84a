"""Writers: where new rows go."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.replay.writers._ensemble import WriterEnsemble
    from rl.replay.writers._immutable import ImmutableDatasetWriter
    from rl.replay.writers._max_value import TensorDictMaxValueWriter
    from rl.replay.writers._round_robin import RoundRobinWriter, TensorDictRoundRobinWriter

__all__ = [
    "ImmutableDatasetWriter",
    "RoundRobinWriter",
    "TensorDictMaxValueWriter",
    "TensorDictRoundRobinWriter",
    "WriterEnsemble",
]

__getattr__, __dir__ = lazy_exports(__name__)
