"""Replay buffers that draw by priority."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError
from rl.core.interfaces import Storage, Writer
from rl.core.keys import INDEX, PRIORITY_WEIGHT, TD_ERROR, NestedKey, key_str
from rl.replay import _foreign
from rl.replay._arguments import refuse_parts
from rl.replay._backend import offers_more_than_torch, refuse_device
from rl.replay._buffer import ReplayBuffer
from rl.replay._list import ListStorage
from rl.replay._prioritized import PrioritizedSampler
from rl.replay._tensordict_buffer import TensorDictReplayBuffer

__all__ = ["PrioritizedReplayBuffer", "TensorDictPrioritizedReplayBuffer"]


class _Prioritized(ReplayBuffer):
    """What both buffers have in common."""

    def __init__(  # noqa: PLR0913  those of a buffer and those of its sampler
        self,
        *,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        reduction: str = "max",
        max_priority_within_buffer: bool = False,
        backend: str = "auto",
        sampler_device: torch.device | str | None = None,
        compilable: bool = False,
        stratified: bool = False,
        storage: Storage | None = None,
        writer: Writer | None = None,
        batch_size: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        prefetch: int | None = None,
        pin_memory: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        refuse_parts(type(self).__name__, storage=storage, writer=writer, transform=transform)
        storage = ListStorage() if storage is None else storage
        if sampler_device is None and backend == "auto":
            sampler_device = _device_for(type(self).__name__, storage, dtype)
        self._priorities: Final = PrioritizedSampler(
            storage.max_size,
            alpha,
            beta,
            eps,
            dtype,
            reduction,
            max_priority_within_buffer,
            backend=backend,
            device=sampler_device,
            compilable=compilable,
            stratified=stratified,
        )
        super().__init__(
            storage=storage,
            sampler=self._priorities,
            writer=writer,
            batch_size=batch_size,
            transform=transform,
            collate_fn=collate_fn,
            prefetch=prefetch,
            pin_memory=pin_memory,
            generator=generator,
        )

    @property
    def alpha(self) -> float:
        """How much priority counts; may be set."""
        return self._priorities.alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        with self._lock:
            self._priorities.alpha = value

    @property
    def beta(self) -> float:
        """How much of the bias the weights correct; may be set."""
        return self._priorities.beta

    @beta.setter
    def beta(self, value: float) -> None:
        with self._lock:
            self._priorities.beta = value

    def update_priorities(self, index: Tensor, priority: Tensor) -> None:
        """The same as `update_priority`."""
        self.update_priority(index, priority)


_Prioritized.__init__.__qualname__ = "PrioritizedReplayBuffer.__init__"  # whose it is, for a wrong argument


@final
@_foreign.prioritized_buffer
class PrioritizedReplayBuffer(_Prioritized):
    """A `ReplayBuffer` with a `PrioritizedSampler` for its storage.

    Args:
        alpha: as all up to `stratified`: see `PrioritizedSampler`.
        beta: likewise.
        eps: likewise.
        dtype: likewise.
        reduction: likewise.
        max_priority_within_buffer: likewise.
        backend: likewise.
        sampler_device: where priorities live. If None, that of the storage if an accelerator answers there, else the
            CPU.
        compilable: likewise.
        stratified: likewise.
        storage: as all that follow: see `ReplayBuffer`.
        writer: likewise.
        batch_size: likewise.
        transform: likewise.
        collate_fn: likewise.
        prefetch: likewise. A batch on its way was drawn with the priorities of its draw: an update reaches the draws
            after it, `prefetch` batches later.
        pin_memory: likewise.
        generator: likewise.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.replay.storages import LazyTensorStorage
        >>> buffer = PrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=LazyTensorStorage(1000), backend="torch")
        >>> _ = buffer.extend(TensorDict(obs=torch.randn(100, 4), batch_size=[100]))
        >>> sample, info = buffer.sample(32, return_info=True)
        >>> buffer.update_priority(info["index"], torch.rand(32))
        >>> info["priority_weight"].shape
        torch.Size([32])
    """


@final
@_foreign.prioritized_buffer
class TensorDictPrioritizedReplayBuffer(_Prioritized, TensorDictReplayBuffer):
    """A `TensorDictReplayBuffer` with a `PrioritizedSampler`: samples hold ``index`` and ``priority_weight``.

    Args:
        alpha: as all up to `generator`: see `PrioritizedReplayBuffer`.
        beta: likewise.
        priority_key: where raw priorities are read: in batches that are written, if they have it, and by
            `update_tensordict_priority`.
        eps: likewise.
        dtype: likewise.
        reduction: likewise.
        max_priority_within_buffer: likewise.
        backend: likewise.
        sampler_device: likewise.
        compilable: likewise.
        stratified: likewise.
        storage: likewise.
        writer: likewise.
        batch_size: likewise.
        transform: likewise.
        collate_fn: likewise.
        prefetch: likewise.
        pin_memory: likewise.
        generator: likewise.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.replay.storages import LazyTensorStorage
        >>> buffer = TensorDictPrioritizedReplayBuffer(
        ...     alpha=0.6, beta=0.4, storage=LazyTensorStorage(1000), batch_size=32, backend="torch"
        ... )
        >>> _ = buffer.extend(TensorDict(obs=torch.randn(100, 4), batch_size=[100]))
        >>> sample = buffer.sample()
        >>> sample["td_error"] = torch.rand(32)  # a loss does that
        >>> buffer.update_tensordict_priority(sample)
        >>> sorted(sample.keys())
        ['index', 'obs', 'priority_weight', 'td_error']
    """

    def __init__(  # noqa: PLR0913  all of them by name, so that editors and `help` know them
        self,
        *,
        alpha: float,
        beta: float,
        priority_key: NestedKey = TD_ERROR,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        reduction: str = "max",
        max_priority_within_buffer: bool = False,
        backend: str = "auto",
        sampler_device: torch.device | str | None = None,
        compilable: bool = False,
        stratified: bool = False,
        storage: Storage | None = None,
        writer: Writer | None = None,
        batch_size: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        prefetch: int | None = None,
        pin_memory: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            alpha=alpha,
            beta=beta,
            eps=eps,
            dtype=dtype,
            reduction=reduction,
            max_priority_within_buffer=max_priority_within_buffer,
            backend=backend,
            sampler_device=sampler_device,
            compilable=compilable,
            stratified=stratified,
            storage=storage,
            writer=writer,
            batch_size=batch_size,
            transform=transform,
            collate_fn=collate_fn,
            prefetch=prefetch,
            pin_memory=pin_memory,
            generator=generator,
        )
        self.priority_key: Final = priority_key

    def extend(self, data: Any) -> Tensor:
        """Write the rows of a batch, as `ReplayBuffer.extend`.

        Reads `priority_key` where the batch has it: raw priorities ``[n, ...]``. Other rows get the priority of new
        rows.

        Raises:
            ContractError: as `ReplayBuffer.extend`, or if the batch has ``index`` or ``priority_weight`` already.
            SpecError: likewise, or if a priority, or its power, is infinite or not a number.
            ShapeError: likewise. In each case nothing is written.
        """
        with self._lock:
            self._check(data)
            rows = self.storage.count(data)
            given = self._priority_of(data)
            if given is not None:
                if given.dim() > 1 and given.shape[0] != rows:  # a storage with ndim > 1 counts steps as rows
                    given = given.reshape(rows, -1) if given.numel() % rows == 0 else given
                given = self._priorities.check_priority(given, rows)
            index = super().extend(data)
            if given is not None:
                self._priorities.update_priority(index, given)
        return index

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Take new priorities from a sample that went through a loss.

        Reads ``index`` ``[n]`` and `priority_key` ``[n, ...]``; of rows of several steps the priorities are reduced.

        Raises:
            ContractError: if an entry is missing, or `data` is no TensorDict.
            SpecError: if a priority, or its power, is infinite or not a number; nothing is written then.
            ShapeError: if the shapes do not agree; nothing is written then.
        """
        who = type(self).__name__
        if not isinstance(data, TensorDictBase):  # pyright: ignore[reportUnnecessaryIsInstance]  who calls may not check
            raise ContractError(f"{who}: priorities are read from a TensorDict, got {type(data).__name__}")
        index, priority = (data.get(key, None) for key in (INDEX, self.priority_key))
        if index is None:
            raise ContractError(f"{who}: this TensorDict has no 'index'; give a sample of this buffer")
        if priority is None:
            raise ContractError(
                f"{who}: this sample has no {key_str(self.priority_key)}, the priority_key of the buffer. A loss "
                "writes it into the TensorDict that it is called with; has it another name there?"
            )
        if index.dim() > 1:  # rows of several steps: the sample repeats the index of a row over its steps
            index = index.reshape(len(index), -1)[:, 0]
        self.update_priority(index, priority)

    def _check(self, data: Any) -> None:
        super()._check(data)
        for rows in data if isinstance(data, list) else [data]:
            if PRIORITY_WEIGHT in rows.keys():
                raise ContractError(
                    f"{type(self).__name__} writes 'priority_weight' into its samples, and this batch has one already; "
                    "drop it with batch.exclude('priority_weight')"
                )

    def _priority_of(self, data: Any) -> Tensor | None:
        if isinstance(data, TensorDictBase):
            return data.get(self.priority_key, None)
        rows: Sequence[Tensor | None] = [row.get(self.priority_key, None) for row in data]
        found = [row for row in rows if row is not None]
        if not found:
            return None
        if len(found) < len(rows) or len({row.shape for row in found}) > 1:
            raise ContractError(
                f"{type(self).__name__}: some rows have {key_str(self.priority_key)} of one shape, others not; "
                "give all of them one, or none"
            )
        return torch.stack(found)


def _device_for(who: str, storage: Storage, dtype: torch.dtype) -> torch.device | None:
    device = getattr(storage, "device", None)
    if device is None or torch.device(device).type == "cpu":
        return None
    device = refuse_device(who, device)
    return device if offers_more_than_torch(device, dtype) else None
