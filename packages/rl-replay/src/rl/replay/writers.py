"""Writers: where new rows go."""

from rl.replay._immutable import ImmutableDatasetWriter
from rl.replay._round_robin import RoundRobinWriter

__all__ = ["ImmutableDatasetWriter", "RoundRobinWriter"]
