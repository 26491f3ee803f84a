"""`DeviceCastTransform`: the environment on one device, its caller on another."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.keys import NestedKey
from rl.envs import _foreign
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["DeviceCastTransform"]


@_foreign.device_cast
class DeviceCastTransform(Transform):
    """Moves all entries that the environment writes to a device, and those that it reads back to its own.

    Order: transforms before it run on the environment's device, those after it on the other one.

    Args:
        device: where the caller has its tensors.
        orig_device: device of the environment; known from the environment if None, else the CPU.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> TransformedEnv(PendulumEnv(), DeviceCastTransform("cpu")).device
        device(type='cpu')
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, device: torch.device | str | int, orig_device: torch.device | str | int | None = None) -> None:
        super().__init__()
        self.device = torch.empty(0, device=device).device
        self.orig_device = None if orig_device is None else torch.empty(0, device=orig_device).device

    def _call(self, entries: Any) -> Any:
        return _moved(entries, self.device)

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        return _moved(root, self.device)

    def _inv(self, root: Any) -> Any:
        return _moved(root, self.orig_device or torch.device("cpu"))

    def transform_specs(self, specs: Specs) -> None:
        """Move the specs."""
        self.orig_device = self.orig_device or specs.device
        for name in ("observation", "action", "reward", "done", "state"):
            setattr(specs, name, getattr(specs, name).to(self.device))
        specs.device = self.device


def _moved(entries: Any, device: torch.device) -> Any:
    if isinstance(entries, TensorDictBase):
        return entries.to(device)
    keys: list[NestedKey] = leaf_keys(entries)
    return {key: entries[key].to(device) if isinstance(entries[key], Tensor) else entries[key] for key in keys}
