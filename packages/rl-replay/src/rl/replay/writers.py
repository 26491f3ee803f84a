"""Writers: where new rows go."""

from rl.replay._immutable import ImmutableDatasetWriter
from rl.replay._round_robin import RoundRobinWriter, TensorDictRoundRobinWriter

__all__ = ["ImmutableDatasetWriter", "RoundRobinWriter", "TensorDictRoundRobinWriter"]
