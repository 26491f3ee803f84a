"""The replay buffer for TensorDicts whose samples know where they came from."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError
from rl.core.keys import INDEX
from rl.replay._buffer import ReplayBuffer
from rl.replay._collate import collate
from rl.replay._extra import Annotated
from rl.replay._layout import Layout
from rl.replay._tensor import TensorRows

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

    _wider: tuple[Layout, set[Any], Layout | None] | None = None

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

    def _read(self, index: Tensor, info: dict[Any, Any]) -> Any:
        storage = self.storage
        if isinstance(storage, TensorRows) and self._collate is collate and not self._extra.reads:
            data = self._read_annotated(storage, index, info)
            if data is not None:
                return Annotated(data)
        return super()._read(index, {INDEX: index, **info})

    def _read_annotated(self, storage: TensorRows, index: Tensor, info: dict[Any, Any]) -> TensorDictBase | None:
        """Rows with what is known about them; None unless that is one number for each, on the CPU as they are."""
        layout, shape = storage.layout, index.shape
        if layout is None or layout.root is None or layout.root.tail or not storage.on_cpu or len(shape) != 1:
            return None
        known = {INDEX: index, **info}
        if any(type(value) is not Tensor or value.shape != shape or not value.is_cpu for value in known.values()):
            return None
        wider = self._wider
        if wider is None or wider[0] is not layout or wider[1] != known.keys():
            self._wider = wider = layout, set(known), layout.with_numbers(known)
        if wider[2] is None or (cells := storage.cells(index)) is None:
            return None
        cells.update(known)
        return wider[2].build(cells, shape, storage.device)

    def _annotate(self, data: Any, info: dict[Any, Any]) -> Any:
        if isinstance(data, Annotated):
            return data.data
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
