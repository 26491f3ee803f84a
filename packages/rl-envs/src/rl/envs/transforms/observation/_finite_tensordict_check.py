"""`FiniteTensorDictCheck`: raises where an entry is NaN or infinite."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from rl.core.errors import ContractError
from rl.core.keys import key_str
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Transform

__all__ = ["FiniteTensorDictCheck"]


class FiniteTensorDictCheck(Transform):
    """Raises a ContractError that names the entry if a floating-point entry is NaN or infinite.

    Order: append it last, or behind the transform that you suspect.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> FiniteTensorDictCheck()(TensorDict({"observation": torch.tensor([0.0, torch.inf])}, [2]))
        Traceback (most recent call last):
        ...
        rl.core.errors.ContractError: 'observation' is not finite in 1 of 2 elements: ...
    """

    leafwise: ClassVar[bool] = True

    def _call(self, entries: Any) -> Any:
        for key in leaf_keys(entries):
            value = entries.get(key)
            if isinstance(value, Tensor) and value.is_floating_point() and not value.isfinite().all():
                wrong = int((~value.isfinite()).sum())
                raise ContractError(
                    f"{key_str(key)} is not finite in {wrong} of {value.numel()} elements: look at the environment, or"
                    " the transforms before FiniteTensorDictCheck"
                )
        return entries
