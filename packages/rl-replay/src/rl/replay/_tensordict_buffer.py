"""The replay buffer for TensorDicts whose samples know where they came from."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError
from rl.core.keys import INDEX
from rl.replay._buffer import ReplayBuffer

__all__ = ["TensorDictReplayBuffer"]


class TensorDictReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` that writes what is known about a draw into the sampled TensorDict.

    Takes the arguments of `ReplayBuffer`. Writes ``index``, int64 ``[*B]``, and every tensor of the sampler's
    info, such as ``priority_weight``. Values of a row are repeated over the dimensions of the row, so that all
    entries have the batch's shape.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from rl.replay.storages import LazyTensorStorage
        >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
        >>> _ = buffer.extend(TensorDict(obs=torch.arange(10), batch_size=[10]))
        >>> sample = buffer.sample()
        >>> bool((sample["index"] == sample["obs"]).all())
        True
    """

    def _check(self, data: Any) -> None:
        if isinstance(data, list):
            for row in data:
                self._refuse_other(row)
        else:
            self._refuse_other(data)

    def _refuse_other(self, data: Any) -> None:
        if not isinstance(data, TensorDictBase):
            raise ContractError(
                f"{type(self).__name__} stores TensorDicts, got {type(data).__name__}; use ReplayBuffer for others"
            )
        if INDEX in data.keys():
            raise ContractError(
                f"{type(self).__name__} writes 'index' into its samples, and this batch has one already; drop it "
                "with batch.exclude('index')"
            )

    def _annotate(self, data: Any, info: dict[Any, Any]) -> Any:
        if not isinstance(data, TensorDictBase):
            raise ContractError(
                f"{type(self).__name__}: collate_fn made a {type(data).__name__}, expected a TensorDict"
            )
        shape = data.batch_size
        for key, value in info.items():
            if not isinstance(value, Tensor):
                continue
            repeat = len(shape) > 1 and value.dim() == 1
            data.set(key, value.view(-1, *[1] * (len(shape) - 1)).expand(shape) if repeat else value)
        return data
