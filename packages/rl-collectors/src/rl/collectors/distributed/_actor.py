"""A collector in an actor of Ray, and batches and weights as NumPy arrays, which Ray's object store shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rl.collectors._collector import VERSION
from rl.collectors.weights._load import load_weights
from rl.core.keys import TRAJ_IDS, leaf_keys, unwrap

__all__ = ["RayWorker", "packed", "packed_weights", "tensordict_of", "tensors"]

#: ids of trajectories begin at a multiple of it after an actor was replaced
_LIFE = 1 << 40


class RayWorker:
    """A collector in an actor.

    Args:
        collector_class: makes the collector.
        create_env_fn: makes the environment, or a list of such functions for a collector with processes.
        policy: the policy; a function that makes it if `factory`.
        factory: see `policy`.
        settings: further arguments of the collector.
        place: number of this actor, of all actors, and how often this one was replaced.
        seed: of torch's generator.
        weights: for the first batch, or None.
        version: of these weights.
    """

    def __init__(
        self,
        collector_class: Any,
        create_env_fn: Any,
        policy: Any,
        factory: bool,  # noqa: FBT001  # internal
        settings: Mapping[str, Any],
        place: tuple[int, int, int],
        seed: int,
        weights: Mapping[str, Any] | None,
        version: int,
    ) -> None:
        torch.manual_seed(seed)
        self._policy = policy() if factory else policy
        self._collector = collector_class(create_env_fn, self._policy, **settings)
        self._index, self._count, life = place
        self._first_id = life * _LIFE
        self._new = None if weights is None else (weights, version)
        self._version = 0

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        """Keep weights for the next batch; called in a thread of its own while a batch is collected."""
        if self._new is None or version > self._new[1]:
            self._new = weights, version

    def collect(self) -> dict[str, Any]:
        """Collect a batch with the newest weights."""
        if self._new is not None and self._new[1] > self._version:
            weights, self._version = self._new
            if isinstance(self._collector.policy, nn.Module):
                load_weights(self._collector.policy, tensors(weights))
            self._collector.update_policy_weights_()
        batch = self._collector.collect()
        ids = batch.get(TRAJ_IDS, None)
        if ids is not None:  # no two actors share one
            batch.set(TRAJ_IDS, ids * self._count + (self._index + self._first_id))
        return packed(batch.set(VERSION, torch.full(batch.batch_size, self._version, device=batch.device)))

    def describe(self) -> dict[str, Any]:
        """Frames of a batch, and names, shapes and dtypes of the weights."""
        state = self._policy.state_dict() if isinstance(self._policy, nn.Module) else {}
        weights = {name: (tuple(value.shape), value.dtype) for name, value in state.items()}
        return {"frames_per_batch": self._collector.frames_per_batch, "weights": weights}

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the collector."""
        return getattr(self._collector, name)(*args, **kwargs)

    def attribute(self, name: str) -> Any:
        """An attribute of the collector."""
        return getattr(self._collector, name)


def packed(batch: TensorDictBase) -> dict[str, Any]:
    """A batch as arrays by key."""
    entries = {key: _array(batch.get(key)) for key in leaf_keys(batch)}
    return {"entries": entries, "batch_size": tuple(batch.batch_size), "names": batch.names}


def tensordict_of(parts: Mapping[str, Any]) -> TensorDict:
    """The batch of `packed`, in memory of its own."""
    entries: dict[Any, Any] = {unwrap(key): _tensor(value) for key, value in parts["entries"].items()}
    return TensorDict(entries, batch_size=parts["batch_size"], names=parts["names"])


def packed_weights(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Weights as arrays by name."""
    return {name: _array(value) for name, value in weights.items()}


def tensors(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays by name as tensors in memory of their own."""
    return {name: _tensor(value) for name, value in arrays.items()}


def _array(value: Any) -> Any:
    """A tensor as an array, which the object store shares without a copy; other things as they are."""
    if not isinstance(value, Tensor):
        return value
    try:
        return value.detach().cpu().numpy()
    except TypeError:  # a dtype that NumPy does not have
        return value.detach().cpu()


def _tensor(value: Any) -> Any:
    return torch.tensor(value) if isinstance(value, np.ndarray) else value
