"""Start Ray, and turn tensors into NumPy arrays, which its object store shares without a copy."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.errors import MissingExtraError, RLError

__all__ = ["import_ray", "packed", "start_ray", "unpacked"]


def import_ray(owner: str, extra: str) -> Any:
    """Return the module `ray`.

    Args:
        owner: names the component in messages.
        extra: requirement that installs Ray, such as ``rl-replay[ray]``.

    Raises:
        MissingExtraError: if Ray is not installed.
    """
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        raise MissingExtraError(f'{owner} needs Ray, which is not installed: pip install "{extra}"') from error


def start_ray(ray: Any, config: Mapping[str, Any] | None, owner: str) -> None:
    """Start Ray, or connect to a cluster.

    Args:
        ray: the module.
        config: arguments of ``ray.init``; `log_to_driver` is False unless it is among them.
        owner: names the component in messages.

    Raises:
        RLError: if there is no cluster at the address.
    """
    config = {"log_to_driver": False, **(config or {})}
    try:
        ray.init(**config)
    except ConnectionError as error:
        raise RLError(
            f"{owner} finds no Ray cluster at {config.get('address')!r} ({str(error).splitlines()[0]}): start one"
            " with `ray start --head`, or leave the address out to start Ray here"
        ) from error


class _Batch:
    """A TensorDict as arrays."""

    def __init__(self, batch: TensorDictBase) -> None:
        self.entries = {name: packed(value) for name, value in batch.items()}
        self.batch_size, self.names = tuple(batch.batch_size), batch.names

    def tensordict(self) -> TensorDict:
        """The batch, in memory of its own."""
        names: Any = self.names if any(self.names) else None
        return TensorDict(unpacked(self.entries), batch_size=self.batch_size, names=names)


class _Array:
    """A tensor as an array, or as itself if NumPy does not have its dtype."""

    def __init__(self, value: Tensor) -> None:
        value = value.detach().cpu()
        try:
            self.value: Any = value.numpy()
        except (TypeError, RuntimeError):
            self.value = value

    def tensor(self) -> Tensor:
        """The tensor, in memory of its own."""
        return torch.tensor(self.value) if isinstance(self.value, (np.ndarray, np.generic)) else self.value


def packed(value: Any) -> Any:
    """Return `value` with arrays in place of tensors and TensorDicts, also inside tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return _Array(value)
    if type(value) is TensorDict:  # others, such as lazy stacks, are pickled
        return _Batch(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map(packed, value))
    if isinstance(value, dict):
        return {key: packed(item) for key, item in value.items()}
    return value


def unpacked(value: Any) -> Any:
    """Return the value that `packed` was given, in memory of its own."""
    if isinstance(value, _Array):
        return value.tensor()
    if isinstance(value, _Batch):
        return value.tensordict()
    if isinstance(value, (tuple, list)):
        return type(value)(map(unpacked, value))
    if isinstance(value, dict):
        return {key: unpacked(item) for key, item in value.items()}
    return value
