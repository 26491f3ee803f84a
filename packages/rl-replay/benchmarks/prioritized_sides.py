"""TorchRL's side of the scripts here, and the batch that all are given."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from tensordict import TensorDict

ALPHA, BETA = 0.6, 0.4


def batch(rows: int) -> TensorDict:
    """Seven leaves."""
    return TensorDict(
        observation=torch.randn(rows, 17),
        action=torch.randn(rows, 6),
        sample_log_prob=torch.randn(rows),
        next=TensorDict(
            observation=torch.randn(rows, 17),
            reward=torch.randn(rows, 1),
            done=torch.zeros(rows, 1, dtype=torch.bool),
            terminated=torch.zeros(rows, 1, dtype=torch.bool),
            batch_size=[rows],
        ),
        batch_size=[rows],
    )


def torchrl_uniform(data: TensorDict, size: int) -> Any:
    """Its buffer with these rows, drawn uniformly; None, with a word why, if it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its compiled trees, which are not needed here
            from torchrl.data import LazyTensorStorage, ReplayBuffer
    except ImportError as problem:
        print(f"TorchRL: left out, {problem}")
        return None
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    buffer = ReplayBuffer(storage=LazyTensorStorage(len(data)), batch_size=size)
    buffer.extend(data)
    return buffer


def torchrl_works() -> bool:
    """Whether TorchRL is installed and its compiled trees load; says why not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it could not load is said below
            from torchrl.data.replay_buffers.samplers import PrioritizedSampler

            logging.getLogger("torchrl").setLevel(logging.WARNING)
            PrioritizedSampler(1, ALPHA, BETA)
    except Exception as problem:  # noqa: BLE001  its compiled trees load with one version of torch only
        print(f"TorchRL: left out, {type(problem).__name__}: {str(problem).splitlines()[0][:100]}")
        return False
    return True


def torchrl_buffer(data: TensorDict, size: int) -> Any:
    """Its buffer with these rows, priorities at random."""
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

    rows = len(data)
    buffer = TensorDictPrioritizedReplayBuffer(alpha=ALPHA, beta=BETA, storage=LazyTensorStorage(rows), batch_size=size)
    buffer.extend(data)
    buffer.update_priority(torch.arange(rows), torch.rand(rows))
    return buffer


def torchrl_sampler(rows: int) -> tuple[Any, Any]:
    """Its sampler with priorities at random, and a storage of that many rows."""
    from torchrl.data import LazyTensorStorage
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler

    sampler, storage = PrioritizedSampler(rows, ALPHA, BETA), LazyTensorStorage(rows)
    storage.set(range(rows), torch.zeros(rows, dtype=torch.uint8))
    sampler.update_priority(torch.arange(rows), torch.rand(rows))
    return sampler, storage
