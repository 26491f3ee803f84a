"""Base of the sample units."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from rl.core.interfaces import Storage

__all__ = ["SampleUnit"]


class SampleUnit(ABC):
    """Maps each sampled row, the *anchor*, to the rows that a batch has for it.

    The sampler of a buffer selects anchors, with its probabilities; ``sample_unit=`` of the buffer then selects the
    rows. A subclass defines `expand`. One that follows the writes of a buffer may define `attach`, `admit`, `extended`,
    `empty`, `state_dict`, `load_state_dict` and `prepare_load`, see `rl.core.interfaces.Sampler`.

    Example:
        >>> import torch
        >>> from rl.replay import ReplayBuffer, TensorStorage
        >>> class Pairs(SampleUnit):
        ...     keys = ("anchor_index",)
        ...
        ...     def expand(self, index, info, storage):
        ...         pairs = torch.stack((index, (index + 1) % len(storage)), 1)
        ...         return pairs.flatten(), {"anchor_index": index.repeat_interleave(2)}
        >>> buffer = ReplayBuffer(storage=TensorStorage(torch.arange(9)), sample_unit=Pairs())
        >>> buffer.sample(5).view(5, 2).diff().remainder(9).flatten().tolist()
        [1, 1, 1, 1, 1]
    """

    keys: ClassVar[tuple[str, ...]] = ()
    """Entries that `expand` adds to the info."""

    @abstractmethod
    def expand(self, index: Tensor, info: dict[Any, Any], storage: Storage) -> tuple[Tensor, dict[Any, Any]]:
        """Rows of the batch, and the info about them.

        Args:
            index: the anchors, int64 ``[n]``.
            info: of the sampler. Tensors ``[n]``, such as ``priority_weight``, have to be returned for the rows.
            storage: of the buffer; must not be changed.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
