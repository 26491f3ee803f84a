"""Checks of the ends of episodes: terminal observations and truncations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.interfaces import Env
from rl.core.keys import NestedKey, leaf_keys, unwrap
from rl.core.mdp import FLAGS, done_levels
from rl.core.testing._report import Report, fail, require, same_values
from rl.core.testing.env._course import Course

__all__ = ["Ends", "check_inner_reset"]

_LOST = (
    "the terminal observation is lost: at episode ends, 'next' holds an observation of the following episode;"
    " an environment that resets itself inside step must keep the last observation under 'next'"
)


class Ends:
    """The ends of a run, element by element.

    Args:
        course: the environment.
        time_limit: steps after which it truncates; None if that is not known.
    """

    def __init__(self, course: Course, time_limit: int | None) -> None:
        self._course, self._limit = course, time_limit
        self._age = torch.zeros((), dtype=torch.int64)  # of each episode, from the first step on
        self._truncated: list[int] = []
        self._kept = self._moved = False
        self._alike = 0
        keys = leaf_keys(course.env.full_done_spec)
        levels = [course.level] if course.one_level else done_levels(keys)
        flags = [(flag, unwrap((*level, flag))) for flag in FLAGS[1:] for level in levels]
        self._flags = [(flag, key) for flag, key in flags if key in keys]
        self._kinds: set[str] = set()
        self.seen = 0
        """Steps at which an episode ended."""

    @property
    def unseen(self) -> list[str]:
        """The kinds of ends, ``terminated`` and ``truncated``, that the specs have and that did not occur."""
        return list(dict.fromkeys(flag for flag, _ in self._flags if flag not in self._kinds))

    @property
    def enough(self) -> bool:
        """Whether the run can stop: three steps with ends, and ends of both kinds."""
        return self.seen >= 3 and not self.unseen

    def record(self, before: TensorDictBase, outcome: TensorDictBase, root: TensorDictBase) -> None:
        """Take in a step: its root, its outcome, and the following root."""
        course = self._course
        self.seen += course.over(outcome)
        self._kinds |= {flag for flag, key in self._flags if bool(outcome.get(key).any())}
        if not course.one_level:
            return
        over = course.per_episode(outcome.get(course.done_keys[0])).cpu()
        self._age = self._age + torch.ones_like(over, dtype=torch.int64)
        cut = outcome.get(course.at_level("truncated"), None)
        cut = torch.zeros_like(over) if cut is None else course.per_episode(cut).cpu()
        self._check_limit(over, cut)
        self._truncated += self._age[cut].tolist()
        self._moved |= not all(same_values(before.get(key), outcome.get(key)) for key in self._keys(outcome, over))
        if bool(over.any()):
            alike = torch.ones_like(over)
            for key in self._keys(outcome, over):
                alike &= _same_rows(outcome.get(key), root.get(key), over.ndim)
            self._alike += int((alike & over).sum())
            self._kept |= bool((over & ~alike).any())
        self._age[over] = 0

    def _keys(self, outcome: TensorDictBase, over: Tensor) -> list[NestedKey]:
        """The observations of each episode: those of the group, if each agent has its own."""
        values = {key: outcome.get(key) for key in self._course.observation_keys}
        return [
            key
            for key, value in values.items()
            if isinstance(value, Tensor) and self._course.of_entry(over.unsqueeze(-1), key, value).shape == over.shape
        ]

    def _check_limit(self, over: Tensor, cut: Tensor) -> None:
        if self._limit is None:
            return
        early = cut & (self._age < self._limit)
        require(
            not bool(early.any()),
            f"a terminal state is reported as truncated: an episode was truncated after {self._age[early][:1].tolist()}"
            f" steps, the time limit is {self._limit}; learners bootstrap there",
            self._course.owner,
        )
        late = ~over & (self._age >= self._limit)
        require(not bool(late.any()), f"an episode goes on after the time limit of {self._limit}", self._course.owner)

    def check(self, report: Report, steps: int) -> None:
        """Raise if terminal observations are lost; report what could not be seen."""
        if not self.seen:
            report.skip(
                f"episode ends: none in {steps} random steps; give `steps=`, or make the environment with shorter"
                " episodes"
            )
            return
        for flag in self.unseen:
            limit = f", although the time limit is {self._limit}" if self._limit and flag == "truncated" else ""
            report.skip(f"ends reported as {flag}: none in {steps} random steps{limit}; give `steps=`")
        if not self._course.one_level:
            report.skip("terminal observations: the done flags are in several groups, and not at the root")
            return
        if self._alike > 1 and self._moved and not self._kept:
            fail(_LOST, self._course.owner)
        if not self._kept:
            report.skip("terminal observations: at every end seen, the observation equals that of the reset")
        if self._truncated and self._limit is None:
            ages = sorted(set(self._truncated))
            report.skip(
                f"whether ends reported as truncated are time limits: episodes were truncated after {ages} steps;"
                " give `time_limit=`"
            )


def _same_rows(left: Tensor, right: Tensor, batch_dims: int) -> Tensor:
    same = left == right
    if left.is_floating_point():
        same |= left.isnan() & right.isnan()
    return same.flatten(batch_dims).all(-1).cpu() if same.ndim > batch_dims else same.cpu()


def check_inner_reset(make_env: Callable[[], Env], seed: int, steps: int) -> None:
    """A reset inside `step` draws from the generator: the outcome of the last step then depends on the seed.

    Where no other step of an episode depends on the generator, that shows that the terminal observation is one of the
    following episode.
    """
    with Course(make_env, seed) as one, Course(make_env, seed) as two:
        for course in (one, two):
            course.env.set_seed(seed)
        left, right = one.env.reset(), two.env.reset()
        if not one.one_level:
            return
        for step in range(steps):
            one.env.set_seed(seed + 2 * step + 1)
            two.env.set_seed(seed + 2 * step + 2)
            action = one.act()
            left, right = one.env.step(left.update(action.clone())), two.env.step(right.update(action.clone()))
            after, other = left.get("next"), right.get("next")
            same = all(same_values(after.get(key), other.get(key)) for key in one.observation_keys)
            if one.over(after) or one.over(other):
                require(same or not step, _LOST, one.owner)
                return
            if not same:
                return  # transitions are random: nothing can be concluded
            left, right = one.advance(left), two.advance(right)
