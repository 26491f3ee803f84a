"""Components of rl-replay, as data, and its priority tree and row gather."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rl.core.component import Component
from rl.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import torch

    from rl.core.interfaces import PriorityTree, RowGather

_ROWS = (
    ("storage", "list", "ListStorage", "Rows of any type in a Python list."),
    ("storage", "lazy-stack", "LazyStackStorage", "Rows that differ, in a list; batches are lazy stacks."),
    ("storage", "compressed-list", "CompressedListStorage", "Rows of equal shape, each compressed, in a list."),
    ("storage", "tensor", "TensorStorage", "Rows in tensors that exist already, such as a dataset."),
    ("storage", "lazy-tensor", "LazyTensorStorage", "Rows in memory that the first batch allocates."),
    ("storage", "lazy-memmap", "LazyMemmapStorage", "Rows in memory-mapped files."),
    ("storage", "ensemble", "StorageEnsemble", "Rows of several storages, to read."),
    ("sampler", "random", "RandomSampler", "Uniform, with replacement."),
    ("sampler", "prioritized", "PrioritizedSampler", "In proportion to priority, with importance weights."),
    ("sampler", "without-replacement", "SamplerWithoutReplacement", "Passes that sample each row exactly once."),
    ("sampler", "slices", "SliceSampler", "Steps that follow each other within a trajectory."),
    ("sampler", "slices-without-replacement", "SliceSamplerWithoutReplacement", "A slice of each trajectory in turn."),
    ("sampler", "prioritized-slices", "PrioritizedSliceSampler", "Slices by the priority of their first step."),
    ("sampler", "consuming", "ConsumingSampler", "Each row a given number of times, until it is overwritten."),
    ("sampler", "staleness-aware", "StalenessAwareSampler", "Weights that decay with the age of the policy."),
    ("sampler", "ensemble", "SamplerEnsemble", "Several samplers, each for a part of the batch."),
    ("transform", "burn-in", "BurnInTransform", "Recurrent states warmed up on the first steps of sampled slices."),
    ("transform", "multi-step", "MultiStepTransform", "Rewards and states of n steps, before they are written."),
    ("transform", "policy-age", "PolicyAgeFilter", "Samples without the steps of old policies."),
    ("transform", "random-crop", "RandomCropTensorDict", "A random part of each sampled trajectory."),
    ("transform", "reward-to-go", "Reward2GoTransform", "Discounted sum of the rewards that follow, when written."),
    ("writer", "round-robin", "RoundRobinWriter", "A ring: the newest row replaces the oldest."),
    ("writer", "ensemble", "WriterEnsemble", "The writers of an ensemble, which is read only."),
    ("writer", "max-value", "TensorDictMaxValueWriter", "Keeps the rows with the largest values."),
    ("writer", "immutable", "ImmutableDatasetWriter", "Rejects writes, for datasets."),
)


@hookimpl
def rl_components() -> Iterator[Component]:
    """Storages, samplers, writers and transforms of buffers."""
    for kind, name, attribute, summary in _ROWS:
        yield Component(kind=kind, name=name, target=f"rl.replay:{attribute}", summary=summary)


@hookimpl(trylast=True)
def rl_priority_tree(capacity: int, device: torch.device, dtype: torch.dtype) -> PriorityTree | None:
    """Return the tree in plain torch, for every device."""
    if str(dtype) not in ("torch.float32", "torch.float64"):  # torch itself is not imported by a declaration
        return None
    from rl.replay._priority_tree import PrefixTree

    return PrefixTree(capacity, device, dtype)


@hookimpl(trylast=True)
def rl_row_gather(tensors: Sequence[torch.Tensor]) -> RowGather:
    """Return copies of rows in plain torch, for every device."""
    from rl.replay.storages._successors import TorchRowGather

    return TorchRowGather(tensors)
