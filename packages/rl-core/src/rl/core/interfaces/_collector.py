"""Collectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from tensordict import TensorDictBase

__all__ = ["Collector"]


class Collector(Protocol):
    """An iterable of batches ``[*B, T]`` whose last dimension is named ``time``."""

    def __iter__(self) -> Iterator[TensorDictBase]: ...
    def shutdown(self) -> None:
        """Close the environments. May be called twice."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact continuation needs, as tensors and plain containers."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
        ...
