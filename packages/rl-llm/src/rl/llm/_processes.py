"""Several training processes, as torchrun starts them: each samples and trains its share of a batch."""

from __future__ import annotations

import atexit
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, distributed

from rl.core.errors import ArgumentError


def start(device: str) -> str:
    """Join the other processes of torchrun, if there are any, and return the device of this one."""
    if not distributed.is_initialized() and distributed.is_torchelastic_launched():
        distributed.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl")
        atexit.register(distributed.destroy_process_group)
    if count() > 1 and device == "cuda":
        device = f"cuda:{distributed.get_node_local_rank()}"  # pyright: ignore[reportPrivateImportUsage]
        torch.cuda.set_device(device)
    return device


def count() -> int:
    """Return the number of processes."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """Return the number of this process; the first one, 0, writes the run folder."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def share(number: int, owner: str, name: str) -> int:
    """Return the part of this process of a number of groups, pairs or answers.

    Raises:
        ArgumentError: If it is no multiple of the number of processes.
    """
    if number % count():
        raise ArgumentError(f"{owner}: {name} must be a multiple of the {count()} processes, got {number}")
    return number // count()


def seed_of(seed: int) -> int:
    """Return a seed of this process; that of the first one is the seed."""
    return seed + (rank() << 32)


def sum_up(values: Iterable[Tensor]) -> None:
    """Replace tensors by their sums over the processes."""
    if count() > 1:
        for one in values:
            distributed.all_reduce(one)


def gather(value: Any) -> list[Any]:
    """Return the values of all processes, in order."""
    if count() == 1:
        return [value]
    found = [None] * count()
    distributed.all_gather_object(found, value)
    return found


def wait() -> None:
    """Wait for all processes, such as for a file that the first one writes."""
    if count() > 1:
        distributed.barrier()
