"""Devices by name, and threads."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from rl.core.errors import BackendError
from rl.trainers._config.config import RunConfig

__all__ = ["check_device", "float_outputs", "mixed_precision", "storing_device", "torch_threads"]


def check_device(device: str) -> None:
    """Raise unless tensors can be made on a device.

    Raises:
        BackendError: if not; names the available devices.

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
    """The context of the losses of a run: their matrix products are of the precision of `config`, weights stay float32.

    Weights are cast at each use: a cast that a target has made without gradient would otherwise serve the loss, too.
    """
    if config.precision == "fp32":
        return nullcontext()
    kind = torch.device(config.device).type
    return torch.autocast(kind, torch.bfloat16, cache_enabled=False)


def float_outputs(config: RunConfig, *parts: nn.Module) -> None:
    """Let networks in `parts` put out float32 in `mixed_precision`, so that values and log-probabilities are computed in it."""
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
