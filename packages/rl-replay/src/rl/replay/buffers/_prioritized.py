"""Replay buffers with a prioritized sampler."""

from __future__ import annotations

from typing import Final, Unpack, final

import torch
from torch import Tensor

from rl.core.interfaces import Storage
from rl.core.keys import TD_ERROR, NestedKey
from rl.replay import _foreign
from rl.replay._arguments import check_parts
from rl.replay._priority.backend import check_device
from rl.replay.buffers._base import ReplayBuffer
from rl.replay.buffers._options import OwnSamplerOptions, PrioritizedOptions
from rl.replay.buffers._tensordict import TensorDictReplayBuffer
from rl.replay.samplers._prioritized import PrioritizedSampler
from rl.replay.storages._list import ListStorage

__all__ = ["PrioritizedReplayBuffer", "TensorDictPrioritizedReplayBuffer"]


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

    def update_priorities(self, index: Tensor, priority: Tensor) -> None:
        """Alias of `update_priority`."""
        self.update_priority(index, priority)


_Prioritized.__init__.__qualname__ = "PrioritizedReplayBuffer.__init__"  # named in errors about arguments


@final
@_foreign.prioritized_buffer
class PrioritizedReplayBuffer(_Prioritized):
    """A `ReplayBuffer` with a `PrioritizedSampler` for its storage.

    Args:
        alpha: see `PrioritizedSampler`.
        beta: see `PrioritizedSampler`.
        eps: see `PrioritizedSampler`.
        dtype: see `PrioritizedSampler`.
        reduction: see `PrioritizedSampler`.
        max_priority_within_buffer: see `PrioritizedSampler`.
        backend: see `PrioritizedSampler`.
        sampler_device: device of the priorities. If None, that of the storage if an accelerator is available there,
            else the CPU.
        compilable: see `PrioritizedSampler`.
        stratified: see `PrioritizedSampler`.
        options: arguments of `ReplayBuffer`, except for `sampler`, `consume_after_n_samples` and `shared`. With
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
@_foreign.prioritized_buffer
class TensorDictPrioritizedReplayBuffer(_Prioritized, TensorDictReplayBuffer):
    """A `TensorDictReplayBuffer` with a `PrioritizedSampler`: samples hold ``index`` and ``priority_weight``.

    Args:
        alpha: see `PrioritizedSampler`.
        beta: see `PrioritizedSampler`.
        priority_key: where raw priorities are read: in batches that are written, if they have it, and by
            `update_tensordict_priority`.
        options: arguments of `PrioritizedReplayBuffer`.

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
