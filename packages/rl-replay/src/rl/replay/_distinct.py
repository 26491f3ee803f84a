"""Sampling without replacement from a sampler with replacement."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from rl.replay._index_set import Longs

__all__ = ["distinct"]


def distinct(draw: Callable[[int], Tensor], count: int, rounds: int = 64) -> Longs:
    """The first `count` different numbers of a random sequence, int64 ``[n]``; fewer if they do not come soon.

    Each next number is distributed as a sample of the numbers that were not found before.

    Args:
        draw: samples the next n numbers of the sequence.
        count: how many to return.
        rounds: how often to sample twice as many as are missing.

    Example:
        >>> import torch
        >>> numbers = iter([torch.tensor([3, 3, 5, 3]), torch.tensor([5, 1])])
        >>> distinct(lambda n: next(numbers), 3).tolist()
        [3, 5, 1]
    """
    found: Longs = np.empty(0, np.int64)
    for _ in range(rounds):
        more = np.concatenate((found, draw(2 * (count - len(found))).cpu().numpy()))
        found = more[np.sort(np.unique(more, return_index=True)[1])][:count]
        if len(found) == count:
            break
    return found
