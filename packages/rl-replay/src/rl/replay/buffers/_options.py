"""Arguments that a buffer passes on to `ReplayBuffer`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import torch

from rl.core.interfaces import Sampler, Storage, Writer
from rl.replay.sample_units._base import SampleUnit

__all__ = ["BufferOptions", "OwnSamplerOptions", "PrioritizedOptions", "SampledOptions"]


class BufferOptions(TypedDict, total=False):
    """Those of all buffers; `ReplayBuffer` describes them."""

    storage: Storage | None
    writer: Writer | None
    batch_size: int | None
    transform: Callable[[Any], Any] | None
    collate_fn: Callable[[Any], Any] | None
    prefetch: int | None
    pin_memory: bool
    generator: torch.Generator | None
    dim_extend: int | None


class SampledOptions(BufferOptions, total=False):
    """Those of a buffer that is given its sampler."""

    sampler: Sampler | None
    sample_unit: SampleUnit | None
    consume_after_n_samples: int | None
    shared: bool


class OwnSamplerOptions(BufferOptions, total=False):
    """Those of a buffer that makes its sampler."""

    sample_unit: SampleUnit | None


class PrioritizedOptions(OwnSamplerOptions, total=False):
    """Those of a buffer that makes a `PrioritizedSampler`; `PrioritizedReplayBuffer` describes them."""

    eps: float
    dtype: torch.dtype
    reduction: str
    max_priority_within_buffer: bool
    backend: str
    sampler_device: torch.device | str | None
    compilable: bool
    stratified: bool
