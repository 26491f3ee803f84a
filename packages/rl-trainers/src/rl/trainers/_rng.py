"""The global random generators: seeding, saving, and leaving them alone."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

__all__ = ["load_rng_state", "preserved_rng", "rng_state", "seed_everything"]


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, numpy and torch (all devices).

    Example:
        >>> seed_everything(0)
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_state() -> dict[str, Any]:
    """The state of all global generators, as tensors and plain containers."""
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def load_rng_state(state: Mapping[str, Any]) -> None:
    """Continue where `rng_state` was taken."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def preserved_rng() -> Generator[None]:
    """Whatever the block draws, the generators afterwards are as before."""
    state = rng_state()
    try:
        yield
    finally:
        load_rng_state(state)
