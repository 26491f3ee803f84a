"""What rl-replay offers, as data."""

from collections.abc import Iterator

from rl.core.components import Component
from rl.core.hookspecs import hookimpl

_ROWS = (
    ("storage", "list", "ListStorage", "Rows of any type in a Python list."),
    ("storage", "tensor", "TensorStorage", "Rows in tensors that exist already, such as a dataset."),
    ("storage", "lazy-tensor", "LazyTensorStorage", "Rows in memory that the first batch allocates."),
    ("storage", "lazy-memmap", "LazyMemmapStorage", "Rows in memory-mapped files."),
    ("sampler", "random", "RandomSampler", "Uniform, with replacement."),
    ("sampler", "without-replacement", "SamplerWithoutReplacement", "Passes that draw each row exactly once."),
    ("writer", "round-robin", "RoundRobinWriter", "A ring: the newest row replaces the oldest."),
    ("writer", "immutable", "ImmutableDatasetWriter", "Refuses writes, for datasets."),
)


@hookimpl
def rl_components() -> Iterator[Component]:
    """Storages, samplers and writers."""
    for kind, name, attribute, summary in _ROWS:
        yield Component(kind=kind, name=name, target=f"rl.replay:{attribute}", summary=summary)
