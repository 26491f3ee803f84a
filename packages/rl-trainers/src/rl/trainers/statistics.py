"""Statistics of several runs: interquartile mean, bootstrap intervals, probability of improvement. Imports no torch.

They are those of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rl.core.errors import ArgumentError, ShapeError

__all__ = ["bootstrap_interval", "interquartile_mean", "probability_of_improvement"]


def interquartile_mean(scores: Any, *, axis: int = 0) -> Any:
    """Return the mean of the middle half of the runs; a lowest and a highest quarter are left out, rounded down.

    Args:
        scores: Scores, with a dimension of runs.
        axis: Dimension of runs.

    Returns:
        An array, or a number, without that dimension.

    Raises:
        ShapeError: If there are no runs.

    Example:
        >>> float(interquartile_mean([1.0, 2.0, 3.0, 100.0]))
        2.5
    """
    values = np.sort(_runs(scores, axis), axis=axis)
    count = values.shape[axis]
    return values.take(range(count // 4, count - count // 4), axis=axis).mean(axis=axis)


def probability_of_improvement(scores: Any, others: Any, *, axis: int = 0) -> Any:
    """Return the probability that a run of one algorithm scores more than a run of another; equal ones count half.

    Args:
        scores: Scores of the first algorithm, with a dimension of runs.
        others: Scores of the second one; other dimensions are the same.
        axis: Dimension of runs.

    Returns:
        An array, or a number, without that dimension.

    Raises:
        ShapeError: If there are no runs.

    Example:
        >>> float(probability_of_improvement([3.0, 4.0], [1.0, 3.0]))
        0.875
    """
    mine = np.moveaxis(_runs(scores, axis), axis, -1)[..., :, None]
    theirs = np.moveaxis(_runs(others, axis), axis, -1)[..., None, :]
    return ((mine > theirs) + 0.5 * (mine == theirs)).mean(axis=(-2, -1))


def bootstrap_interval(
    *scores: Any,
    statistic: Callable[..., Any] = interquartile_mean,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Any:
    """Return the percentile bootstrap interval of a statistic; runs are drawn with replacement.

    Args:
        scores: Scores ``[runs, ...]`` of each algorithm that the statistic takes; a run is drawn with all its scores.
        statistic: Function of arrays with ``axis``, the dimension of runs.
        level: Share of the bootstrap distribution that lies in the interval.
        resamples: Number of draws.
        seed: Seed of the draws.

    Returns:
        Lower and upper end, ``[2, ...]``.

    Raises:
        ShapeError: If there are no runs.
        ArgumentError: If the level is not in (0, 1), or there are no draws.

    Example:
        >>> low, high = bootstrap_interval([8.0, 9.0, 10.0, 11.0, 12.0])
        >>> bool(8 <= low < 10 < high <= 12)
        True
    """
    if not 0 < level < 1:
        raise ArgumentError(f"bootstrap_interval: level must be in (0, 1), got {level}")
    if resamples < 1:
        raise ArgumentError(f"bootstrap_interval: resamples must be above 0, got {resamples}")
    generator = np.random.default_rng(seed)
    drawn: list[Any] = []
    for one in scores:
        runs = _runs(one, 0)
        drawn.append(runs[generator.integers(len(runs), size=(resamples, len(runs)))])
    return np.quantile(statistic(*drawn, axis=1), [(1 - level) / 2, (1 + level) / 2], axis=0)


def _runs(scores: Any, axis: int) -> Any:
    values = np.asarray(scores, dtype=float)
    if values.ndim == 0 or values.shape[axis] == 0:
        raise ShapeError(f"scores need a dimension of runs with one run at least, got the shape {values.shape}")
    return values
