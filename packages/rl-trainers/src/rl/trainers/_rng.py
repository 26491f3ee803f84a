"""Global random generators: seed, save and restore."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

__all__ = ["Seeds", "load_rng_state", "preserved_rng", "rng_state", "seed_everything", "seeds_of"]


class Seeds(NamedTuple):
    """Independent seeds for the random streams of a run, each in ``[0, 2**31)``."""

    networks: int
    environment: int
    evaluation: int
    final_evaluation: int
    later_evaluation: int


def seeds_of(seed: int) -> Seeds:
    """The seeds that follow from the one of a run.

    They are children of a `numpy.random.SeedSequence`, so that runs with neighbouring seeds share no start states.

    Example:
        >>> len({*seeds_of(0), *seeds_of(1)})
        10
    """
    children = np.random.SeedSequence(seed).spawn(len(Seeds._fields))
    return Seeds(*(int(child.generate_state(1)[0]) >> 1 for child in children))


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
    """Continue where `rng_state` was taken.

    With other CUDA devices than there, or none, their generators keep the seed that they were given.
    """
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"].cpu())  # torch takes states from the CPU only
    if state["cuda"] and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all([one.cpu() for one in state["cuda"]])


@contextmanager
def preserved_rng() -> Generator[None]:
    """Whatever the block draws, the generators afterwards are as before."""
    state = rng_state()
    try:
        yield
    finally:
        load_rng_state(state)
