"""`RandomTruncationTransform`: time limits that differ between the elements of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.envs.base._specs import flag_spec
from rl.envs.transforms._draws import RandomTransform
from rl.envs.transforms._entries import check_root_done
from rl.envs.transforms._specs import Specs

__all__ = ["RandomTruncationTransform"]


class RandomTruncationTransform(RandomTransform):
    """Truncates episodes at random lengths, so that the elements of a batch do not begin and end together.

    The first episode of an element is cut after a number of steps drawn from 1 to `max_horizon`, a later one with a
    probability from `min_horizon` to `max_horizon`, otherwise at `max_horizon`. Numbers are drawn with the seed of the
    environment.

    Reads ``step_count``; writes ``truncated`` and ``done`` under ``next``.

    Args:
        min_horizon: shortest length of a random cut after the first episode, at least 1.
        max_horizon: longest length, at least `min_horizon`.
        prob: probability of a random cut.
        first_episode_prob: the same for the second episode of an element, the first one after its initial cut;
            `prob` if None.

    Raises:
        SpecError: if a length or probability is out of range, or there is no ``step_count``.

    Order: after `StepCounter`.

    Example:
        >>> from rl.envs import Compose, PendulumEnv, StepCounter, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv([50]), Compose(StepCounter(), RandomTruncationTransform(5, 10)))
        >>> int(env.rollout(20, break_when_any_done=False)["next", "step_count"].max())
        10
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self, min_horizon: int, max_horizon: int, prob: float = 0.0, first_episode_prob: float | None = None
    ) -> None:
        super().__init__(["step_count"], ["truncated"])
        first = prob if first_episode_prob is None else first_episode_prob
        if not 1 <= min_horizon <= max_horizon or not 0 <= prob <= 1 or not 0 <= first <= 1:
            raise SpecError(
                "RandomTruncationTransform needs 1 <= min_horizon <= max_horizon and probabilities in [0, 1], got"
                f" {min_horizon}, {max_horizon}, prob={prob}, first_episode_prob={first_episode_prob}"
            )
        self.min_horizon, self.max_horizon, self.prob, self.first_episode_prob = min_horizon, max_horizon, prob, first
        self._horizon: Tensor | None = None
        self._episode: Tensor | None = None
        self._device: torch.device | None = None

    def set_seed(self, seed: int) -> None:
        super().set_seed(seed)
        if self._episode is not None:  # the next episodes are the first ones again
            self._episode = torch.zeros_like(self._episode)

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        done = root["done"]
        begins = torch.ones_like(done) if mask is None else mask
        if self._horizon is None or self._episode is None or self._horizon.shape != done.shape:
            self._horizon = torch.ones_like(done, dtype=torch.int64)
            self._episode = torch.zeros_like(self._horizon)
        first = self._integers(1, self.max_horizon, done.shape).to(done.device)
        later = self._integers(self.min_horizon, self.max_horizon, done.shape).to(done.device)
        chance = self._uniform(done.shape).to(done.device)
        cut = torch.where(chance < torch.where(self._episode == 1, self.first_episode_prob, self.prob), later, 0)
        horizon = torch.where(self._episode == 0, first, torch.where(cut == 0, self.max_horizon, cut))
        self._horizon = torch.where(begins, horizon, self._horizon)
        self._episode = self._episode + begins.to(torch.int64)
        if root.get("truncated", None) is None:
            root["truncated"] = torch.zeros_like(done)
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        del root
        over = outcome["step_count"] >= self._horizon
        truncated = outcome.get("truncated", None)
        outcome["truncated"] = over if truncated is None else truncated | over
        outcome["done"] = outcome["done"] | over
        return outcome

    def transform_specs(self, specs: Specs) -> None:
        """Add ``truncated`` to the flags."""
        self._device = specs.device or torch.device("cpu")  # that of the entries here
        check_root_done(specs, self)
        if specs.observation.get("step_count", None) is None:
            raise SpecError(
                f"{self!r} reads 'step_count', which the environment does not write: put StepCounter before"
            )
        if specs.done.get("truncated", None) is None:
            specs.done["truncated"] = flag_spec(specs.done["done"].shape, specs.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the lengths, the numbers of the episodes, and the state of the generator."""
        state = super().state_dict()
        return state if self._horizon is None else {**state, "horizon": self._horizon, "episode": self._episode}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        super().load_state_dict(state)
        saved = (state.get("horizon"), state.get("episode"))
        self._horizon, self._episode = (None if one is None else one.to(self._device) for one in saved)
