"""Tensors of torch as arrays of JAX, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Joining", "to_jax", "to_torch"]

_SMALL = 1 << 16
"""Bytes up to which an array on the CPU is copied: that costs less than the exchange through DLPack."""


def to_jax(jax: Any, tensor: Tensor) -> Any:
    """An argument for a compiled function; large tensors share their memory through DLPack."""
    tensor = tensor.detach()
    if tensor.device.type == "cpu" and tensor.nbytes <= _SMALL:
        return tensor.numpy()
    return jax.numpy.from_dlpack(tensor.contiguous())


def to_torch(array: Any) -> Tensor:
    """A result of a compiled function; large arrays share their memory through DLPack."""
    if array.nbytes <= _SMALL and array.device.platform == "cpu":
        return torch.from_numpy(np.array(array))
    return torch.from_dlpack(array)


class Joining:
    """Small results of a compiled function as one array for each dtype, which cross to torch in one piece.

    XLA runs a function with few results faster too. Flags are joined with the bytes; large results stay alone.

    Args:
        jax: the module.
        example: shapes and dtypes of the results.
    """

    def __init__(self, jax: Any, example: Sequence[Any]) -> None:
        self._jax, self._count = jax, len(example)
        self._groups: dict[Any, list[tuple[int, int, int, tuple[int, ...], bool]]] = {}
        for index, leaf in enumerate(example):
            dtype, shape = np.dtype(leaf.dtype), tuple(leaf.shape)
            flag, size = dtype == np.bool_, int(np.prod(shape))
            alone = index if size * dtype.itemsize > _SMALL else None
            members = self._groups.setdefault((np.dtype(np.uint8) if flag else dtype, alone), [])
            start = members[-1][2] if members else 0
            members.append((index, start, start + size, shape, flag))

    def join(self, results: Sequence[Any]) -> list[Any]:
        """Return the arrays; part of the compiled function."""
        jnp = self._jax.numpy
        return [
            jnp.concatenate([results[index].reshape(-1).astype(dtype) for index, *_ in members])
            for (dtype, _), members in self._groups.items()
        ]

    def split(self, arrays: Sequence[Any]) -> list[Tensor]:
        """Return the results as tensors."""
        found: list[Any] = [None] * self._count
        for array, members in zip(arrays, self._groups.values(), strict=True):
            whole = to_torch(array)
            on_cpu = whole.device.type == "cpu"
            rows: Any = whole.numpy() if on_cpu else whole  # parts of an array are tensors on their own
            for index, start, stop, shape, flag in members:
                part = rows[start:stop].reshape(shape)
                if flag:
                    part = part.view(np.bool_ if on_cpu else torch.bool)
                found[index] = torch.from_numpy(part) if on_cpu else part
        return found
