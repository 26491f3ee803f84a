"""Replay buffer for TensorDicts; samples have their indices and importance weights."""

from __future__ import annotations

from typing import Any, Final, Unpack, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, ContractError
from rl.core.interfaces import Sampler, Storage
from rl.core.keys import INDEX, PRIORITY_WEIGHT, TD_ERROR, NestedKey, key_str
from rl.replay._arguments import check_parts, overrides, to_device
from rl.replay._priority_tree import check_device
from rl.replay.buffers._base import GENERATION, ReplayBuffer
from rl.replay.buffers._pipeline import OwnSamplerOptions, PrioritizedOptions, SampledOptions
from rl.replay.sample_units import Sequence
from rl.replay.samplers._base import SamplerBase
from rl.replay.samplers._prioritized import PrioritizedSampler
from rl.replay.storages._list import ListStorage


@foreign_arguments()
class TensorDictReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` that writes the info of a sample into the sampled TensorDict.

    Args:
        priority_key: Entry of raw priorities ``[n, ...]``, if the sampler has priorities: read by
            `update_tensordict_priority`, and from written batches that have it; otherwise rows get the priority of new
            rows.
        options: Arguments of `ReplayBuffer`.

    Writes ``index``, int64 ``[*B]``, and every tensor of the sampler's info, such as ``priority_weight``. Values of a
    row are repeated over the dimensions of the row, so that all entries have the batch's shape. `extend` rejects a
    batch that has one of these entries, or a priority that is infinite or NaN.

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

    has_priorities: bool
    """Whether the sampler has priorities."""

    def __init__(self, *, priority_key: NestedKey = TD_ERROR, **options: Unpack[SampledOptions]) -> None:
        super().__init__(**options)
        self.priority_key = priority_key

    def _follow_sampler(self) -> None:
        super()._follow_sampler()
        self.has_priorities = overrides(self._sampler, SamplerBase, "check_priority")
        weight = (PRIORITY_WEIGHT,) if self.has_priorities else ()
        generation = () if self._tracked is None else (GENERATION,)
        self._reserved = (INDEX, *weight, *generation, *self.sample_unit.keys)  # written into samples

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Update priorities from a sample with TD errors.

        Reads ``index`` ``[n]`` and `priority_key` ``[n, ...]``; of rows of several steps the priorities are reduced.
        Of a sample with `Sequence` it reads ``anchor_index`` in place of ``index``, and also ``sequence_id``,
        ``validity_mask`` and ``learning_mask``: each anchor gets the largest absolute priority of those rows of its
        window that are valid and in the learning part.

        Raises:
            ContractError: If an entry is missing, `data` is not a TensorDict, or the sampler has no priorities.
            ArgumentError: If a priority, or its power, is infinite or NaN; nothing is written then.
            ShapeError: If the shapes differ; nothing is written then.
        """
        owner = type(self).__name__
        if not isinstance(data, TensorDictBase):  # pyright: ignore[reportUnnecessaryIsInstance]  callers may not check
            raise ContractError(f"{owner}: priorities are read from a TensorDict, got {type(data).__name__}")
        index, priority = (data.get(key, None) for key in (INDEX, self.priority_key))
        if index is None:
            raise ContractError(f"{owner}: this TensorDict has no 'index'; pass a sample of this buffer")
        if priority is None:
            raise ContractError(
                f"{owner}: this sample has no {key_str(self.priority_key)}, the priority_key of the buffer. Call "
                "the loss on this sample first, or set priority_key to the entry that it writes"
            )
        if isinstance(self.sample_unit, Sequence):
            index, priority = _of_anchors(owner, data, priority)
        elif index.dim() > 1:  # rows of several steps: the sample repeats the index of a row over its steps
            index = index.reshape(len(index), -1)[:, 0]
        self.update_priority(index, priority)

    def _write(self, data: Any) -> Tensor:
        if not self.has_priorities:
            return super()._write(data)
        with self._lock:
            self._check(data)
            rows = self.storage.count(data)
            given = self._priority_of(data)
            if given is not None:
                if given.dim() > 1 and given.shape[0] != rows:  # a storage with ndim > 1 counts steps as rows
                    given = given.reshape(rows, -1) if given.numel() % rows == 0 else given
                given = self._sampler.check_priority(given, rows)
            index = super()._write(data)
            if given is not None:
                self.sampler.update_priority(index, given)
        return index

    def _priority_of(self, data: Any) -> Tensor | None:
        if isinstance(data, TensorDictBase):
            return data.get(self.priority_key, None)
        rows: list[Tensor | None] = [row.get(self.priority_key, None) for row in data]
        found = [row for row in rows if row is not None]
        if not found:
            return None
        if len(found) < len(rows) or len({row.shape for row in found}) > 1:
            raise ContractError(
                f"{type(self).__name__}: {key_str(self.priority_key)} differs in shape between rows, or some "
                "lack it; give it to all rows in one shape, or to none"
            )
        return torch.stack(found)

    def _check(self, data: Any) -> None:
        for rows in data if isinstance(data, list) else [data]:
            self._check_type(rows)

    def _check_type(self, data: Any) -> None:
        if type(data) is not TensorDict and not isinstance(data, TensorDictBase):  # the former is faster
            raise ContractError(
                f"{type(self).__name__} stores TensorDicts, got {type(data).__name__}; use ReplayBuffer for others"
            )
        keys = data.keys()
        for key in self._reserved:
            if key in keys:
                raise ContractError(
                    f"{type(self).__name__} writes {key!r} into its samples, and this batch has one already; remove it "
                    f"with batch.exclude({key!r})"
                )

    def _annotate(self, data: Any, info: dict[Any, Any]) -> Any:
        if not isinstance(data, TensorDictBase):
            raise ContractError(
                f"{type(self).__name__}: collate_fn returned a {type(data).__name__}, expected a TensorDict"
            )
        shape = data.batch_size
        for key, value in info.items():
            if not isinstance(value, Tensor):
                continue
            repeat = len(shape) > 1 and value.dim() == 1
            there = to_device(value, data.device)  # a TensorDict on a device would wait for it
            data.set(key, there.view(-1, *[1] * (len(shape) - 1)).expand(shape) if repeat else there)
        return data


def _of_anchors(owner: str, data: TensorDictBase, priority: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the anchors of sampled windows ``[m]``, and the largest absolute priority of each window ``[m]``.

    Raises:
        ContractError: If `data` lacks what `Sequence` added, or no row of a window counts.
    """
    cells = [data.get(key, None) for key in Sequence.keys]
    if any(cell is None for cell in cells):
        missing = ", ".join(repr(key) for key, cell in zip(Sequence.keys, cells, strict=True) if cell is None)
        raise ContractError(f"{owner}: this TensorDict has no {missing}; pass a sample of this buffer")
    window, _, learning, valid, anchor = (cell.reshape(-1) for cell in cells)
    priority = priority.detach().reshape(len(window), -1).abs().amax(1)
    counts = learning & valid
    window, inverse = window[counts].unique(return_inverse=True)
    of_window = torch.zeros(len(window), dtype=priority.dtype, device=priority.device)
    anchors = torch.zeros_like(window).scatter_(0, inverse, anchor[counts])
    return anchors, of_window.scatter_reduce_(
        0, inverse.to(priority.device), priority[counts.to(priority.device)], "amax"
    )


class _Prioritized(ReplayBuffer):
    """Base of both prioritized buffers."""

    def __init__(
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
        **options: Unpack[OwnSamplerOptions],
    ) -> None:
        storage, writer, transform = (options.get(name) for name in ("storage", "writer", "transform"))
        check_parts(type(self).__name__, storage=storage, writer=writer, transform=transform)
        options["storage"] = storage = ListStorage() if storage is None else storage
        if sampler_device is None and backend == "auto":
            sampler_device = _device_for(type(self).__name__, storage)
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
        super().__init__(sampler=self._priorities, **options)

    @property
    def alpha(self) -> float:
        """Exponent of the priorities; may be set."""
        return self._priorities.alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        with self._lock:
            self._priorities.alpha = value

    @property
    def beta(self) -> float:
        """Exponent of the importance weights; may be set."""
        return self._priorities.beta

    @beta.setter
    def beta(self, value: float) -> None:
        with self._lock:
            self._priorities.beta = value

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Reject another sampler: the priorities are those of the buffer.

        Raises:
            ArgumentError: Always.
        """
        raise ArgumentError(
            f"{type(self).__name__} samples by its priorities, got {type(sampler).__name__}: another sampler is an"
            " argument of ReplayBuffer or TensorDictReplayBuffer"
        )

    def update_priorities(self, index: Tensor, priority: Tensor) -> None:
        """Alias of `update_priority`."""
        self.update_priority(index, priority)


_Prioritized.__init__.__qualname__ = "PrioritizedReplayBuffer.__init__"  # named in errors about arguments


@final
@foreign_arguments()
class PrioritizedReplayBuffer(_Prioritized):
    """A `ReplayBuffer` with a `PrioritizedSampler` for its storage.

    Args:
        alpha: Argument of `PrioritizedSampler`.
        beta: Argument of `PrioritizedSampler`.
        eps: Argument of `PrioritizedSampler`.
        dtype: Argument of `PrioritizedSampler`.
        reduction: Argument of `PrioritizedSampler`.
        max_priority_within_buffer: Argument of `PrioritizedSampler`.
        backend: Argument of `PrioritizedSampler`.
        sampler_device: Device of the priorities. If None, that of the storage if an accelerator is available there,
            else the CPU.
        compilable: Argument of `PrioritizedSampler`.
        stratified: Argument of `PrioritizedSampler`.
        options: Arguments of `ReplayBuffer`, except for `sampler`, `consume_after_n_samples` and `shared`. With
            `prefetch`, an update of priorities affects batches from the `prefetch`-th after it on.

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
@foreign_arguments()
class TensorDictPrioritizedReplayBuffer(_Prioritized, TensorDictReplayBuffer):
    """A `TensorDictReplayBuffer` with a `PrioritizedSampler`: samples hold ``index`` and ``priority_weight``.

    Args:
        alpha: Argument of `PrioritizedSampler`.
        beta: Argument of `PrioritizedSampler`.
        priority_key: Entry from which raw priorities are read: in batches that are written, if they have it, and by
            `update_tensordict_priority`.
        options: Arguments of `PrioritizedReplayBuffer`.

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

    def __init__(
        self, *, alpha: float, beta: float, priority_key: NestedKey = TD_ERROR, **options: Unpack[PrioritizedOptions]
    ) -> None:
        super().__init__(alpha=alpha, beta=beta, **options)
        self.priority_key = priority_key


def _device_for(owner: str, storage: Storage) -> torch.device | None:
    device = getattr(storage, "device", None)
    if device is None or torch.device(device).type == "cpu":
        return None
    return check_device(owner, device)
