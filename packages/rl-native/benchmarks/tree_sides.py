"""Implementations that `tree.py` compares, each with `update` and `sample`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from rl.native import NativePriorityTree

ALPHA, BETA, EPS = 0.6, 0.4, 1e-8
CHILDREN, LINE = 128, 32  # leaves below one of the lowest nodes of the native tree, and float32 in such a node


class Batch(NamedTuple):
    """Rows and the size of their errors, for libraries of either kind."""

    index: torch.Tensor
    error: torch.Tensor
    places: np.ndarray[Any, Any]
    sizes: np.ndarray[Any, Any]

    @classmethod
    def draw(cls, rows: int, size: int) -> Batch:
        index, error = torch.randint(rows, (size,)), torch.randn(size).abs_()
        return cls(index, error, index.numpy(), error.numpy())


class Side(Protocol):
    """One that keeps priorities."""

    def update(self, batch: Batch) -> object: ...
    def sample(self, size: int) -> object: ...


class Native:
    """The tree of this package."""

    def __init__(self, rows: int) -> None:
        self.tree = NativePriorityTree(rows)
        self.tree.update_from_errors(torch.arange(rows), torch.rand(rows), EPS, ALPHA)

    def update(self, batch: Batch) -> object:
        return self.tree.update_from_errors(batch.index, batch.error, EPS, ALPHA)

    def sample(self, size: int) -> object:
        return self.tree.sample_weighted(size, BETA)


class Numpy:
    """Priorities in an array, a running sum for each draw."""

    def __init__(self, rows: int) -> None:
        self.rng = np.random.default_rng(0)
        self.leaf = 1 - self.rng.random(rows, dtype=np.float32)  # none is zero

    def update(self, batch: Batch) -> object:
        self.leaf[batch.places] = (np.abs(batch.sizes) + EPS) ** ALPHA
        return None

    def sample(self, size: int) -> object:
        ends = np.cumsum(self.leaf, dtype=np.float64)
        drawn = np.searchsorted(ends, self.rng.random(size) * ends[-1], side="right")
        return drawn, (self.leaf[drawn] / self.leaf.min()) ** -BETA


class Torch:
    """The same in PyTorch."""

    def __init__(self, rows: int) -> None:
        self.leaf = 1 - torch.rand(rows)

    def update(self, batch: Batch) -> object:
        self.leaf[batch.index] = (batch.error.abs() + EPS).pow(ALPHA)
        return None

    def sample(self, size: int) -> object:
        ends = self.leaf.cumsum(0, dtype=torch.float64)
        drawn = torch.searchsorted(ends, torch.rand(size, dtype=torch.float64) * ends[-1], right=True)
        return drawn, (self.leaf[drawn] / self.leaf.min()).pow(-BETA)


class Cpprb:
    """cpprb, with rows of one byte: it always gathers them too."""

    def __init__(self, rows: int) -> None:
        from cpprb import PrioritizedReplayBuffer

        self.buffer = PrioritizedReplayBuffer(rows, {"x": {"dtype": np.uint8}}, alpha=ALPHA, eps=EPS)
        self.buffer.add(x=np.zeros(rows, np.uint8), priorities=np.random.default_rng(0).random(rows))

    def update(self, batch: Batch) -> object:
        return self.buffer.update_priorities(batch.places, batch.sizes)

    def sample(self, size: int) -> object:
        return self.buffer.sample(size, beta=BETA)


class TorchRL:
    """TorchRL's sampler, which does what the native tree does in its two calls."""

    def __init__(self, rows: int) -> None:
        from torchrl.data import LazyTensorStorage
        from torchrl.data.replay_buffers.samplers import PrioritizedSampler

        logging.getLogger("torchrl").setLevel(logging.WARNING)
        self.sampler = PrioritizedSampler(rows, alpha=ALPHA, beta=BETA, eps=EPS)
        self.sampler.update_priority(torch.arange(rows), torch.rand(rows))
        self.storage = LazyTensorStorage(rows)
        self.storage.set(range(rows), torch.zeros(rows, dtype=torch.uint8))

    def update(self, batch: Batch) -> object:
        return self.sampler.update_priority(batch.index, batch.error)

    def sample(self, size: int) -> object:
        return self.sampler.sample(self.storage, size)


class TorchRLTrees:
    """Its two compiled trees alone: no power, no weight, no choice of points."""

    def __init__(self, rows: int) -> None:
        from torchrl._torchrl import MinSegmentTreeFp32, SumSegmentTreeFp32

        self.trees = SumSegmentTreeFp32(rows), MinSegmentTreeFp32(rows)
        for tree in self.trees:
            tree[torch.arange(rows)] = torch.rand(rows)
        self.points: dict[int, Iterator[torch.Tensor]] = {}

    def update(self, batch: Batch) -> object:
        for tree in self.trees:
            tree[batch.index] = batch.error
        return None

    def sample(self, size: int) -> object:
        total = self.trees[0]
        if size not in self.points:
            # Many, so that what small batches touch does not stay in the first cache.
            self.points[size] = cycle(torch.rand(max(8, 2**16 // size), size) * total.query(0, total.size))
        found = total.scan_lower_bound(next(self.points[size]))
        return found, total[found]


class Lines:
    """The same number of random reads of a leaf and of one of the nodes above: what no tree can do without."""

    def __init__(self, rows: int) -> None:
        self.leaf, self.node = torch.rand(rows), torch.rand((rows // CHILDREN + 1) * LINE)

    def prepare(self, batch: Batch) -> Callable[[], object]:
        above, out = batch.index // CHILDREN * LINE, torch.empty(len(batch.index))

        def read() -> None:
            torch.index_select(self.leaf, 0, batch.index, out=out)
            torch.index_select(self.node, 0, above, out=out)

        return read


KINDS: dict[str, type[Side]] = {
    "native": Native,
    "TorchRL": TorchRL,
    "its trees": TorchRLTrees,
    "cpprb": Cpprb,
    "numpy": Numpy,
    "torch": Torch,
}


def present() -> dict[str, type[Side]]:
    """Those that are installed and can be made; says which not, and why."""
    found: dict[str, type[Side]] = {}
    for name, kind in KINDS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # TorchRL's word on what it could not load is said below
                kind(10)
        except Exception as problem:  # noqa: BLE001  its compiled trees load with one version of torch only
            print(f"{name}: left out, {type(problem).__name__}: {str(problem).splitlines()[0][:100]}")
        else:
            found[name] = kind
    return found
