"""Transforms of devices and dtypes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, RLError
from rl.core.keys import NestedKey
from rl.core.specs import TensorSpec
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["DTypeCastTransform", "DeviceCastTransform", "DoubleToFloat", "PinMemoryTransform"]


@foreign_arguments()
class DeviceCastTransform(Transform):
    """Moves all entries that the environment writes to a device, and those that it reads back to its own.

    Order: transforms before it run on the environment's device, those after it on the other one.

    Args:
        device: Device of the caller's tensors.
        orig_device: Device of the environment; known from the environment if None, else the CPU.

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


class DTypeCastTransform(Transform):
    """Converts entries from one dtype to another, and those that the environment reads back.

    Without any keys, every observation and reward of `dtype_in` is converted, and every action and state entry of
    `dtype_in` is taken in `dtype_out`.

    Args:
        dtype_in: Dtype in the environment.
        dtype_out: Dtype of the caller.
        in_keys: Entries that the environment writes.
        out_keys: Results; `in_keys` if None.
        in_keys_inv: Entries that the environment reads.
        out_keys_inv: The caller's entries; `in_keys_inv` if None.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(), DTypeCastTransform(torch.float32, torch.float64, ["observation"]))
        >>> env.reset()["observation"].dtype
        torch.float64
    """

    def __init__(
        self,
        dtype_in: torch.dtype,
        dtype_out: torch.dtype,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] | None = None,
        out_keys_inv: Iterable[NestedKey] | None = None,
    ) -> None:
        self._every = in_keys is None and in_keys_inv is None
        super().__init__(in_keys or (), out_keys, in_keys_inv or (), out_keys_inv)
        for name, dtype in (("dtype_in", dtype_in), ("dtype_out", dtype_out)):
            if not isinstance(dtype, torch.dtype):
                raise ArgumentError(f"{type(self).__name__}: {name} must be a torch.dtype, got {dtype!r:.100}")
        self.dtype_in, self.dtype_out = dtype_in, dtype_out

    def _apply(self, value: Tensor) -> Tensor:
        return value.to(self.dtype_out)

    def _inverse(self, value: Tensor) -> Tensor:
        return value.to(self.dtype_in)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return spec.to(self.dtype_out)

    def has_inverse(self) -> bool:
        """Whether it maps what the environment reads."""
        return bool(self.in_keys_inv)

    def transform_specs(self, specs: Specs) -> None:
        """Choose the entries if no keys were given, and convert their specs."""
        if self._every:
            written = [(spec, key) for spec in (specs.observation, specs.reward) for key in leaf_keys(spec)]
            read = [(spec, key) for spec in (specs.action, specs.state) for key in leaf_keys(spec)]
            self.in_keys = [key for spec, key in written if spec[key].dtype == self.dtype_in]
            self.in_keys_inv = [key for spec, key in read if spec[key].dtype == self.dtype_in]
            self.out_keys, self.out_keys_inv = list(self.in_keys), list(self.in_keys_inv)
        super().transform_specs(specs)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Convert a collected batch; without any keys, every entry of `dtype_in`."""
        if not self._every:
            return super().forward(tensordict)
        out: Any = tensordict.apply(lambda one: one.to(self.dtype_out) if one.dtype == self.dtype_in else one)
        return out


class DoubleToFloat(DTypeCastTransform):
    """Converts float64 entries to float32, and actions that the environment reads back to float64.

    Without any keys, this holds for all float64 entries of the environment.

    Args:
        in_keys: Entries that the environment writes.
        out_keys: Results; `in_keys` if None.
        in_keys_inv: Entries that the environment reads.
        out_keys_inv: The caller's entries; `in_keys_inv` if None.

    Example:
        >>> from rl.envs import CartPoleEnv, TransformedEnv
        >>> env = TransformedEnv(CartPoleEnv(dtype=torch.float64), DoubleToFloat(["state"], ["state32"]))
        >>> env.rollout(2)["state32"].dtype
        torch.float32
    """

    def __init__(
        self,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] | None = None,
        out_keys_inv: Iterable[NestedKey] | None = None,
    ) -> None:
        super().__init__(torch.float64, torch.float32, in_keys, out_keys, in_keys_inv, out_keys_inv)


class PinMemoryTransform(Transform):
    """Copies a batch to page-locked memory, from which transfers to a GPU do not block. For replay buffers.

    Raises:
        RLError: If torch has no CUDA device.

    Example:
        >>> PinMemoryTransform()
        PinMemoryTransform()
    """

    leafwise = False

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the batch in page-locked memory."""
        if not torch.cuda.is_available():
            raise RLError("PinMemoryTransform needs a CUDA device, and torch has none; leave it out")
        return tensordict.pin_memory()
