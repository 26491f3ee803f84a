"""Metrics of episodes, and what is due when."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Episode(NamedTuple):
    """A finished episode: the steps of its environment in the batch up to its end, its return and its length."""

    step: int
    episode_return: float
    length: int


class EpisodeStats:
    """Returns and lengths of finished episodes, from rewards and done flags alone.

    Args:
        num_envs: Number of environments.
        window: Episodes over which means are taken.

    Example:
        >>> stats = EpisodeStats(num_envs=1)
        >>> stats.update(torch.ones(1, 3, 1), torch.tensor([False, True, False]).view(1, 3, 1))
        [Episode(step=2, episode_return=2.0, length=2)]
        >>> stats.episodes, stats.return_mean
        (1, 2.0)
    """

    def __init__(self, num_envs: int, window: int = 100) -> None:
        self.episodes = 0
        self._running = torch.zeros(num_envs, dtype=torch.float64)
        self._steps = torch.zeros(num_envs, dtype=torch.float64)
        self._returns: deque[float] = deque(maxlen=window)
        self._lengths: deque[float] = deque(maxlen=window)

    def update(self, reward: Tensor, done: Tensor) -> list[Episode]:
        """Take a batch in time order.

        Args:
            reward: Rewards ``[num_envs, T, 1]``.
            done: Bool ``[num_envs, T, 1]``.

        Returns:
            The episodes that end in it, in order of time.
        """
        rewards = reward.squeeze(-1).to("cpu", torch.float64)
        ends = done.squeeze(-1).cpu()
        time = torch.arange(1, rewards.shape[1] + 1, dtype=torch.float64)
        total = torch.cumsum(rewards, dim=1) + self._running[:, None]
        steps = time + self._steps[:, None]
        finished: list[Episode] = []
        for env in ends.any(dim=1).nonzero().flatten().tolist():
            before, before_steps = 0.0, 0.0
            for t in ends[env].nonzero().flatten().tolist():
                here, here_steps = float(total[env, t]), float(steps[env, t])
                finished.append(Episode(t + 1, here - before, int(here_steps - before_steps)))
                before, before_steps = here, here_steps
            total[env, -1] -= before
            steps[env, -1] -= before_steps
        self._running, self._steps = total[:, -1].clone(), steps[:, -1].clone()
        finished.sort(key=lambda episode: episode.step)
        for episode in finished:
            self.episodes += 1
            self._returns.append(episode.episode_return)
            self._lengths.append(episode.length)
        return finished

    @property
    def return_mean(self) -> float:
        """Mean return of the last episodes; not a number before the first has ended."""
        return _mean(self._returns)

    @property
    def length_mean(self) -> float:
        """Mean length of the last episodes; not a number before the first has ended."""
        return _mean(self._lengths)

    def state_dict(self) -> dict[str, Any]:
        return {
            "episodes": self.episodes,
            "running": self._running,
            "steps": self._steps,
            "returns": list(self._returns),
            "lengths": list(self._lengths),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.episodes = state["episodes"]
        self._running, self._steps = (state[name].to("cpu", copy=True) for name in ("running", "steps"))
        self._returns = deque(state["returns"], maxlen=self._returns.maxlen)
        self._lengths = deque(state["lengths"], maxlen=self._lengths.maxlen)


def _mean(values: deque[float]) -> float:
    return sum(values) / len(values) if values else math.nan


class Every:
    """Due once in each `interval` of frames.

    Args:
        interval: Frames.

    Example:
        >>> every = Every(100)
        >>> [every.due(frames) for frames in (60, 120, 180, 240)]
        [False, True, False, True]
    """

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.next = interval

    def due(self, frames: int, *, last: bool = False) -> bool:
        """Whether it is time, at `frames`; always at the `last` iteration."""
        if frames < self.next and not last:
            return False
        if frames >= self.next:
            self.next = (frames // self.interval + 1) * self.interval
        return True
