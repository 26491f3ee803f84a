"""Writers: where new rows go."""

from rl.replay.writers._immutable import ImmutableDatasetWriter
from rl.replay.writers._round_robin import RoundRobinWriter, TensorDictRoundRobinWriter

__all__ = ["ImmutableDatasetWriter", "RoundRobinWriter", "TensorDictRoundRobinWriter"]
