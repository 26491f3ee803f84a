"""Several training processes, as torchrun starts them: each samples and trains its share of a batch."""

from __future__ import annotations

import atexit
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils._pytree import tree_map

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


def shard(model: nn.Module) -> None:
    """Divide the weights and gradients of each block of a model, and of the rest, among the processes (FSDP2)."""
    if count() == 1:
        raise ArgumentError("LLMSettings: shard needs several processes. Start them with torchrun")
    from torch.distributed.device_mesh import init_device_mesh  # takes a second
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(model.parameters()).device.type, (count(),))
    blocks = [block for one in model.modules() if isinstance(one, nn.ModuleList) for block in one]
    for one in (*reversed(blocks), model):  # inner ones first
        sharded: Any = fully_shard(one, mesh=mesh)
        sharded.set_gradient_divide_factor(1.0)  # gradients are summed, as those of `sum_up`
        sharded.set_force_sum_reduction_for_comms(True)  # gloo has no other one


def join(state: Any) -> Any:
    """Return a state with entire tensors, in memory of the CPU, in place of divided ones; called in all processes."""
    return tree_map(lambda one: one.full_tensor().cpu() if hasattr(one, "full_tensor") else one, state)


def divide(state: Tensor, like: Any) -> Tensor:
    """Return a tensor divided as another one of its shape is; as it is if the other one is not divided."""
    if not hasattr(like, "full_tensor") or state.shape != like.shape:
        return state
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(state.to(like.device), like.device_mesh, like.placements)
