"""Check that torch can write the dtypes of a storage by index."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, key_str
from rl.replay._layout import Column

__all__ = ["check_writable"]

_INSTEAD = {"uint16": torch.int32, "uint32": torch.int64, "uint64": torch.int64}


@cache
def _writes(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether `index_copy_` supports `dtype`, which depends on device and torch version."""
    try:
        row = torch.empty(1, dtype=dtype, device=device)
        row.index_copy_(0, torch.zeros(1, dtype=torch.int64, device=device), row.clone())
    except (RuntimeError, TypeError):
        return False
    return True


def check_writable(owner: str, columns: Mapping[NestedKey, Column], device: torch.device | None) -> None:
    """Check that `index_copy_` supports the dtype of each column.

    Raises:
        SpecError: naming the entry and a dtype to convert it to.

    Example:
        >>> check_writable("Storage", {"x": Column(torch.Size(), torch.float32)}, None)
    """
    device = torch.get_default_device() if device is None else device
    for key, column in columns.items():
        dtype = column.dtype
        if dtype is None or _writes(dtype, device):
            continue
        name = str(dtype).removeprefix("torch.")
        instead = _INSTEAD.get(name, torch.float16 if name.startswith("float") else torch.int16)
        raise SpecError(
            f"{owner}: {key_str(key) if key else 'the tensor'} is {name}, which torch cannot write by index on"
            f" {device.type}; nothing was written. Convert it with `.to({instead})` before, or use ListStorage, which"
            " keeps rows as they are"
        )
