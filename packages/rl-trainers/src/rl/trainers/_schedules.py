"""Schedules of settings over a run: constant, linear or cosine, after a warm-up. Imports no torch.

A schedule is a function of the frames that are done, so that a resumed run needs no state of it.
"""

from __future__ import annotations

import math

Annealing = bool | str
"""Type of a setting such as ``anneal_lr``."""

SHAPES = (False, True, "linear", "cosine")
"""Its values: False is constant, and True linear."""


def remaining(shape: Annealing, progress: float, warmup: float = 0.0) -> float:
    """Return the share of its first value that an annealed setting has left.

    Cosine: Loshchilov and Hutter, "SGDR: Stochastic gradient descent with warm restarts", 2017, equation 5, without
    restarts.

    Args:
        shape: One of `SHAPES`.
        progress: Share of the run that is done, in [0, 1].
        warmup: Share of the run before which nothing falls, in [0, 1).

    Example:
        >>> [round(remaining(shape, 0.25), 3) for shape in (False, "linear", "cosine")]
        [1.0, 0.75, 0.854]
        >>> remaining("linear", 0.6, warmup=0.2)
        0.5
    """
    if not shape:
        return 1.0
    done = max(progress - warmup, 0.0) / (1 - warmup)
    return (1 + math.cos(math.pi * done)) / 2 if shape == "cosine" else 1 - done


def learning_rate_factor(shape: Annealing, progress: float, warmup: float = 0.0) -> float:
    """Return the factor of a learning rate, which rises linearly from 0 in the warm-up.

    Args:
        shape: One of `SHAPES`.
        progress: Share of the run that is done, in [0, 1].
        warmup: Share of the run in which it rises, in [0, 1).

    Example:
        >>> [learning_rate_factor("linear", progress, warmup=0.5) for progress in (0, 0.25, 0.5, 0.75)]
        [0.0, 0.5, 1.0, 0.5]
    """
    return progress / warmup if progress < warmup else remaining(shape, progress, warmup)


def annealing_steps(shape: Annealing, frames: int, steps: int, warmup: int = 0) -> int:
    """Return the number of steps that a linear schedule of `steps` steps has to take for the value of another shape.

    Args:
        shape: One of `SHAPES`.
        frames: Number of frames that are done.
        steps: Number of frames between first and last value.
        warmup: Number of frames before the schedule begins.

    Example:
        >>> [annealing_steps("cosine", frames, 1000) for frames in (0, 250, 500, 2000)]
        [0, 146, 500, 1000]
    """
    done = max(frames - warmup, 0)
    if shape == "cosine":
        return round(steps * (1 - remaining(shape, min(done / steps, 1.0))))
    return done if shape else 0
