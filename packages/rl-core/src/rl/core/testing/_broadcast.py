"""Find where ``[B]`` meets ``[B, 1]`` and becomes ``[B, B]``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rl.core.testing._report import fail

__all__ = ["NoBroadcast"]


class NoBroadcast(TorchFunctionMode):
    """Raise a `CheckError` where two floating-point tensors ``[B]`` and ``[B, 1]`` are broadcast to ``[B, B]``.

    Args:
        batch_size: of the batch; B is its number of elements or one of its dimensions.
        owner: the component that runs.
    """

    def __init__(self, batch_size: torch.Size, owner: str) -> None:
        super().__init__()
        self._sizes = {*batch_size, batch_size.numel()} - {1}
        self._owner = owner

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, and look at the shapes of its arguments and of its result."""
        kwargs = kwargs or {}
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        pair = self._pair(tensors) if len(tensors) > 1 else None
        name = getattr(func, "__name__", str(func))
        if pair is not None and name.endswith("_loss"):
            self._refuse(pair, name)
        out = func(*args, **kwargs)
        if pair is not None and isinstance(out, Tensor) and out.shape == torch.broadcast_shapes(*pair):
            self._refuse(pair, name)
        return out

    def _pair(self, tensors: list[Tensor]) -> tuple[torch.Size, torch.Size] | None:
        shapes = [value.shape for value in tensors if value.is_floating_point() and value.ndim]
        for flat in shapes:
            for column in shapes:
                if column == (*flat, 1) and flat[-1] in self._sizes and len(set(flat)) == 1:
                    return flat, column
        return None

    def _refuse(self, pair: tuple[torch.Size, torch.Size], name: str) -> None:
        flat, column = pair
        fail(
            f"{name} broadcasts {list(flat)} with {list(column)} to {list(torch.broadcast_shapes(*pair))}: give"
            " both the same shape",
            self._owner,
        )
