"""`SharedWeights`: the weights of a policy in shared memory, with a version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl.core.keys import NestedKey
from rl.core.workers import SharedLeaves, layout_of, write_leaves

__all__ = ["SharedWeights"]


class SharedWeights:
    """The weights of a policy in shared memory, each update with a version, for one writer and several readers.

    There are two copies: an update is written into the one that is not current, and then made current. A reader that
    took so long that its copy was written again reads once more, so that no reader ever has a part of an update.

    Args:
        readers: number of readers.

    Example:
        >>> store = SharedWeights(readers=1)
        >>> net = torch.nn.Linear(2, 1)
        >>> store.map(net.state_dict())
        >>> store.publish(net.state_dict())
        1
        >>> other = torch.nn.Linear(2, 1)
        >>> store.acquire(other.state_dict(), reader=0)
        1
        >>> bool((net.weight == other.weight).all()), store.acknowledged
        (True, [1])
    """

    def __init__(self, readers: int) -> None:
        self._memory = SharedLeaves()
        self._readers = readers
        self._copies: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})

    def map(self, weights: Mapping[str, Any]) -> None:
        """Map the memory for weights of these names, shapes and dtypes, in the writer and in every reader.

        Raises:
            SpecError: if one is no tensor.
        """
        named: dict[Any, Any] = dict(weights)
        layout = layout_of(named, "weights")
        count = ((), torch.int64)
        whole: dict[NestedKey, Any] = {"begun": count, "current": count}
        whole["acknowledged"], whole["versions"] = ((self._readers,), torch.int64), ((2,), torch.int64)
        whole |= {(str(copy), name): place for copy in (0, 1) for name, place in layout.items()}
        found: dict[Any, Tensor] = dict(self._memory.map(whole))
        self._begun, self._current, self._acknowledged = (found[k] for k in ("begun", "current", "acknowledged"))
        self._versions = found["versions"]  # of the two copies
        self._copies = tuple({name: found[str(copy), name] for name in named} for copy in (0, 1))  # pyright: ignore[reportAttributeAccessIssue]

    def close(self) -> None:
        """Close the file of the memory; mapped weights stay valid. May be called twice."""
        self._memory.close()

    @property
    def version(self) -> int:
        """Version of the current weights, 0 before the first update."""
        return int(self._versions[int(self._current) % 2])

    @property
    def acknowledged(self) -> list[int]:
        """The version that each reader took last."""
        return self._acknowledged.tolist()

    def publish(self, weights: Mapping[str, Tensor], version: int | None = None) -> int:
        """Make new weights current and return their version.

        Args:
            weights: The weights.
            version: Version, above the current one; the next one if None.

        Raises:
            ShapeError: if one has another shape than the mapped one.
        """
        version, turn = version or self.version + 1, int(self._current) + 1
        self._begun.fill_(turn)
        places = self._copies[turn % 2]
        given = {name: weights[name].to(place.dtype) for name, place in places.items()}  # as load_state_dict does
        write_leaves(places, given, "SharedWeights.publish")
        self._versions[turn % 2] = version
        self._current.fill_(turn)
        return version

    def acquire(self, weights: Mapping[str, Tensor], reader: int, known: int = 0) -> int:
        """Copy the current weights into `weights` unless they are of version `known`; return their version."""
        version = known
        while (found := int(self._versions[(turn := int(self._current)) % 2])) != version:
            version = found
            given = {name: value.to(weights[name].dtype) for name, value in self._copies[turn % 2].items()}
            write_leaves(weights, given, "SharedWeights.acquire")
            if int(self._begun) > turn + 1:  # written again in the meantime
                version = -1
        self._acknowledged[reader] = version
        return version
