"""Returns of a policy on environments of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rl.collectors import Collector
from rl.core.errors import RLError
from rl.core.interfaces import Env
from rl.core.keys import DONE, NEXT, REWARD
from rl.trainers._build.preprocessing import set_statistics
from rl.trainers._rng import seed_everything

__all__ = ["Evaluator"]

#: steps of an unfinished episode before an evaluation raises, and before a note reports that none has ended
MAX_STEPS, NOTE_STEPS = 100_000, 10_000


class Evaluator:
    """Plays whole episodes.

    Each parallel environment plays the same number of episodes, so that short episodes are not over-represented.

    Args:
        make: called with the number of parallel environments and a seed, returns the environment; `Run.make_env` makes
            one that is meant for evaluations.
        policy: the policy; each `run` uses its current weights.
        deterministic: take the deterministic action, or sample actions as in training.

    Attributes:
        note: called with a line about an evaluation that takes suspiciously long.
        statistics: those with which the environments normalize observations, see
            `rl.trainers._build.preprocessing.statistics_of`; None if they have what they need.
    """

    note: Callable[[str], object] | None = None
    statistics: Sequence[Any] | None = None

    def __init__(
        self, make: Callable[[int, int], Env], policy: Callable[[Any], Any], *, deterministic: bool = True
    ) -> None:
        self._make, self._policy = make, policy
        self._deterministic = deterministic
        self._envs: dict[int, Env] = {}

    def run(self, episodes: int, *, seed: int) -> Tensor:
        """Returns of `episodes` episodes, ``[episodes]`` float64. Seeds the global generators.

        Args:
            episodes: number of episodes, played in parallel.
            seed: of start states and of all randomness.

        Raises:
            RLError: if an episode does not end.
        """
        from rl.core import ExplorationType

        env = self._envs.get(episodes) or self._envs.setdefault(episodes, self._make(episodes, seed))
        if self.statistics is not None:
            set_statistics(env, self.statistics)
        env.set_seed(seed)
        seed_everything(seed)
        how = ExplorationType.DETERMINISTIC if self._deterministic else ExplorationType.RANDOM
        collector = Collector(
            env,
            self._policy,
            frames_per_batch=episodes * 32,
            total_frames=-1,
            exploration_type=how,
        )
        returns = torch.zeros(episodes, dtype=torch.float64)
        alive = torch.ones(episodes, dtype=torch.bool)
        for count, batch in enumerate(collector, start=1):
            reward = batch.get((NEXT, REWARD)).reshape(episodes, -1).to("cpu", torch.float64)
            done = batch.get((NEXT, DONE)).reshape(episodes, -1).cpu()
            before = torch.cumsum(done, dim=1) - done.long()  # episodes that ended before each step
            returns += (reward * ((before == 0) & alive[:, None])).sum(dim=1)
            alive &= ~done.any(dim=1)
            if not alive.any():
                break
            if self.note is not None and count * 32 >= NOTE_STEPS and alive.all():
                self.note(
                    f"note: no episode of the evaluation has ended in {NOTE_STEPS} steps; an environment that never"
                    " ends needs max_episode_steps (--max-episode-steps)"
                )
            if count * 32 >= MAX_STEPS:
                raise RLError(
                    f"an episode of evaluation did not end within {MAX_STEPS} steps; set max_episode_steps"
                    " (--max-episode-steps), which truncates it"
                )
        return returns

    def close(self) -> None:
        """Close the environments. May be called twice."""
        for env in self._envs.values():
            env.close()
        self._envs.clear()
