"""Devices, threads, precision and random states."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from rl.core.errors import BackendError
from rl.trainers.config import RunConfig


def check_device(device: str) -> None:
    """Raise unless tensors can be created on a device.

    Raises:
        BackendError: If not; names the available devices.

    Example:
        >>> check_device("cpu")
    """
    try:
        made = torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        there = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        reason = str(error).strip().splitlines()[0]
        raise BackendError(
            f"the device {device!r} cannot be used here ({reason}); set device to one of {', '.join(there)}"
        ) from error
    if made.is_meta:
        raise BackendError(f"the device {device!r} computes nothing; set device to cpu, for example")


def storing_device(device: str) -> str | None:
    """Where a collector shall put its batches: None, which copies nothing, where learning happens on the CPU."""
    return None if device == "cpu" else device


def mixed_precision(config: RunConfig) -> AbstractContextManager[object]:
    """Return the context of a run's losses: their matrix products have the precision of `config`, weights stay float32.

    Weights are cast at each use: a cast that a target has made without gradient would otherwise serve the loss, too.
    """
    if config.precision == "fp32":
        return nullcontext()
    kind = torch.device(config.device).type
    return torch.autocast(kind, torch.bfloat16, cache_enabled=False)


def float_outputs(config: RunConfig, *parts: nn.Module) -> None:
    """Let networks in `parts` put out float32 in `mixed_precision`: values and log-probabilities are computed in it."""
    if config.precision == "fp32":
        return
    for part in parts:
        for module in part.modules():
            if isinstance(module, TensorDictModule) and isinstance(module.module, nn.Module):
                module.module.register_forward_hook(_to_float)


def _to_float(module: nn.Module, inputs: Any, output: Any) -> Any:  # noqa: ARG001 - of a hook
    return tree_map_only(Tensor, lambda leaf: leaf.float() if leaf.dtype is torch.bfloat16 else leaf, output)


@contextmanager
def torch_threads(count: int) -> Generator[None]:
    """Let torch use `count` threads in the block, 0 for as many as before: sums depend on their number.

    Example:
        >>> with torch_threads(1):
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Seeds(NamedTuple):
    """Independent seeds for the random streams of a run, each in ``[0, 2**31)``."""

    networks: int
    environment: int
    evaluation: int
    final_evaluation: int
    later_evaluation: int


def seeds_of(seed: int, learner: int = 0) -> Seeds:
    """Return the seeds that follow from the one of a run, for one of its learners.

    They are children of a `numpy.random.SeedSequence`, so that runs with neighbouring seeds share no start states.

    Example:
        >>> len({*seeds_of(0), *seeds_of(1)})
        10
    """
    children = np.random.SeedSequence([seed, learner] if learner else seed).spawn(len(Seeds._fields))
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
    """Return the state of all global generators, as tensors and plain containers."""
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
