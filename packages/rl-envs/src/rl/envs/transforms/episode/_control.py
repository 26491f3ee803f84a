"""Transforms that begin, skip and end steps and episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.arguments import as_integer, foreign_arguments
from rl.core.errors import ArgumentError, SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.mdp import where_reset
from rl.core.specs import Bounded, Categorical, OneHot, TensorSpec, Unbounded
from rl.envs.base._specs import flag_spec, leaf_keys
from rl.envs.transforms._base import (
    Reset,
    Step,
    Transform,
    check_root_done,
    element_mask,
    following_root,
    merged,
    step_mask,
)
from rl.envs.transforms._maps import RandomTransform
from rl.envs.transforms._specs import Specs, from_root


class NoopResetEnv(RandomTransform):
    """Takes a number of steps with action 0 after each reset, so that episodes begin in different states.

    The number is drawn for each element and episode; an episode that ends meanwhile is reset, and the steps go on. Mnih
    et al., "Human-level control through deep reinforcement learning", 2015, methods.

    Args:
        noops: Number of steps, at least 1.
        random: Whether to draw the number from 1 to `noops`, with the seed of the environment; exactly `noops` if
            false.

    Raises:
        ArgumentError: If `noops` is below 1.
        SpecError: If the action is not one `Categorical` or `OneHot`, or the environment has no ``done`` at the root.

    Order: before transforms that count steps or hold frames, which would see the steps taken here.

    Example:
        >>> from rl.envs import StepCounter, TransformedEnv
        >>> from rl.testing import CountingEnv
        >>> TransformedEnv(CountingEnv(9), NoopResetEnv(3, random=False)).reset()["observation"]
        tensor([3.])
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, noops: int = 30, *, random: bool = True) -> None:
        super().__init__()
        self.noops, self.random = as_integer(noops, "NoopResetEnv", "noops", 1), random

    def _wrap(self, reset: Reset, step: Step) -> tuple[Reset, Step]:
        def restart(mask: Tensor | None) -> Any:
            root = reset(mask)
            done = root["done"]
            counts = self._integers(1, self.noops, done.shape) if self.random else torch.full(done.shape, self.noops)
            counts = counts.to(done.device)
            if mask is not None:
                counts = torch.where(mask, counts, 0)
            for taken in range(int(counts.max())):
                moving = counts > taken
                following = root.copy()
                following[self._action] = self._noop
                if not moving.all():
                    following["_step"] = moving
                outcome = step(following)
                for key in self._rewards:
                    del outcome[key]
                root = merged(moving, outcome, root)
                over = root["done"] & moving
                if over.any():
                    root = merged(over, reset(over), root)
            return root

        return restart, step

    def transform_specs(self, specs: Specs) -> None:
        """Nothing changes."""
        check_root_done(specs, self)
        actions = leaf_keys(specs.action)
        action = specs.action[actions[0]]
        if len(actions) != 1 or not isinstance(action, Categorical | OneHot):
            raise SpecError(f"{self!r} needs one discrete action, the environment has {specs.action}")
        self._action, self._rewards = actions[0], leaf_keys(specs.reward)
        noop = action.zero()
        if isinstance(action, OneHot):
            noop[..., 0] = 1
        self._noop = noop.expand((*specs.batch_size, *noop.shape)).clone()

    def __repr__(self) -> str:
        return f"NoopResetEnv(noops={self.noops}, random={self.random})"


class ConditionalPolicySwitch(Transform):
    """Lets another policy act while a condition holds, for example the opponent of a game.

    After a reset and after each step, elements for which the condition holds, and which are not done, take an action of
    the other policy, until there are none. The caller receives the entries after the last of these steps, its reward
    and flags included. If the other policy ends an episode at its start, the element is reset again.

    Args:
        policy: Function that writes the action into the root TensorDict.
        condition: Function that receives the TensorDict after a reset or a step; returns a bool, or a bool tensor
            ``[*B]`` or ``[*B, 1]``, true where the other policy acts.

    Raises:
        SpecError: If the condition has another shape, or the environment no ``done`` at the root.

    Example:
        >>> import torch
        >>> from rl.testing import CountingEnv
        >>> from rl.envs import TransformedEnv
        >>> other = lambda td: td.set("action", torch.tensor(0))
        >>> odd = lambda td: td["observation"] % 2 == 1
        >>> env = TransformedEnv(CountingEnv(9), ConditionalPolicySwitch(other, odd))
        >>> env.rollout(3)["observation"].flatten().tolist()
        [0.0, 2.0, 4.0]
    """

    def __init__(
        self,
        policy: Callable[[TensorDictBase], TensorDictBase],
        condition: Callable[[TensorDictBase], Tensor | bool],
    ) -> None:
        super().__init__()
        self.policy, self.condition = policy, condition

    def _wrap(self, reset: Reset, step: Step) -> tuple[Reset, Step]:
        def play(entries: Any, root: Any, among: Tensor | None) -> Any:
            """Step with the other policy where the condition holds, from `entries`."""
            while True:
                done = entries["done"]
                moving = element_mask(self.condition(entries), done, self) & ~done
                if among is not None:
                    moving = moving & among
                if not moving.any():
                    return entries
                following = entries.copy() if root is None else following_root(root, entries)
                following = self.policy(following.exclude(*self._rewards, *self._actions))
                if not moving.all():
                    following["_step"] = moving
                entries = merged(moving, step(following), entries)

        def restart(mask: Tensor | None) -> Any:
            root = reset(mask)
            while True:
                root = play(root, None, mask)
                over = root["done"] if mask is None else root["done"] & mask
                if not over.any():
                    return root.exclude(*self._rewards)
                root, mask = merged(over, reset(over), root), over

        def both(root: Any) -> Any:
            held = root.get("_step", None)
            outcome = step(root)
            return play(outcome, root, None if held is None else held.reshape(outcome["done"].shape))

        return restart, both

    def transform_specs(self, specs: Specs) -> None:
        """Nothing changes."""
        check_root_done(specs, self)
        self._rewards, self._actions = leaf_keys(specs.reward), leaf_keys(specs.action)

    def __repr__(self) -> str:
        names = [getattr(one, "__name__", type(one).__name__) for one in (self.policy, self.condition)]
        return f"ConditionalPolicySwitch({', '.join(names)})"


class ConditionalSkip(Transform):
    """Does not step elements for which a condition holds: they keep their root entries, with reward 0.

    Writes ``_step`` (bool ``[*B, 1]``) into what the environment reads. A batch of which nothing is stepped does not
    reach the environment.

    Args:
        cond: Function that receives the root TensorDict with the action; returns a bool, or a bool tensor ``[*B]`` or
            ``[*B, 1]``, true where the step is skipped.

    Raises:
        SpecError: If the condition has another shape, or the environment no ``done`` at the root.

    Order: transforms before it do not see skipped steps, those after it do.

    Example:
        >>> from rl.envs import PendulumEnv, StepCounter, TransformedEnv
        >>> turns = iter([False, True, True, False])
        >>> env = TransformedEnv(PendulumEnv(), StepCounter()).append_transform(ConditionalSkip(lambda td: next(turns)))
        >>> env.rollout(4)["next", "step_count"].flatten().tolist()
        [1, 1, 1, 2]
    """

    def __init__(self, cond: Callable[[TensorDictBase], Tensor | bool]) -> None:
        super().__init__()
        self.cond = cond

    def _wrap(self, reset: Reset, step: Step) -> tuple[Reset, Step]:
        def maybe(root: Any) -> Any:
            done = root["done"]
            skipped = element_mask(self.cond(root), done, self)
            if not skipped.any():
                return step(root)
            held = self._held(root)
            moving = step_mask(root, done) & ~skipped
            if not moving.any():
                return held
            following = root.copy()
            following["_step"] = moving
            return merged(moving, step(following), held)

        return reset, maybe

    def _held(self, root: Any) -> Any:
        """Return the outcome of a step that changes nothing."""
        held = TensorDict({key: root[key] for key in self._kept}, root.batch_size)
        for key, zero in self._zeros.items():
            held[key] = zero.clone()
        return held

    def transform_specs(self, specs: Specs) -> None:
        """Nothing changes."""
        check_root_done(specs, self)
        self._kept = [*leaf_keys(specs.observation), *leaf_keys(specs.done)]
        self._zeros = {
            key: specs.reward[key].expand(*specs.batch_size, *specs.reward[key].shape).zero()
            for key in leaf_keys(specs.reward)
        }

    def __repr__(self) -> str:
        return f"ConditionalSkip({getattr(self.cond, '__name__', type(self.cond).__name__)})"


class FrameSkipTransform(Transform):
    """Repeats each action and adds up the rewards; the end of an episode stops the repetition.

    Writes the entries of the last repetition and the sum of all rewards. Elements of a batch that are done are not
    stepped on (``_step``) and keep what they had.

    Args:
        frame_skip: Number of times that an action is taken, at least 1.

    Raises:
        ArgumentError: If `frame_skip` is below 1.
        SpecError: If the environment has no ``done`` at the root.

    Order: transforms before it see every frame (`TimeMaxPool`), those after it one in `frame_skip` (`CatFrames`).

    Example:
        >>> from rl.envs import PendulumEnv, StepCounter, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(), StepCounter()).append_transform(FrameSkipTransform(4))
        >>> env.rollout(2)["next", "step_count"].flatten().tolist()
        [4, 8]
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, frame_skip: int = 1) -> None:
        super().__init__()
        self.frame_skip = as_integer(frame_skip, "FrameSkipTransform", "frame_skip", 1)

    def _wrap(self, reset: Reset, step: Step) -> tuple[Reset, Step]:
        rewards, times = self._rewards, self.frame_skip - 1

        def repeat(root: Any) -> Any:
            outcome = step(root)
            held = root.get("_step", None)
            for _ in range(times):
                over = outcome["done"]
                following = following_root(root, outcome)
                if held is None and not over.any():
                    fresh = step(following)
                    for key in rewards:
                        fresh[key] = fresh[key] + outcome[key]
                    outcome = fresh
                    continue
                moving = step_mask(root, over) & ~over
                if not moving.any():
                    break
                following["_step"] = moving
                fresh = step(following)
                for key in rewards:
                    fresh[key] = where_reset(moving, fresh[key] + outcome[key], outcome[key])
                outcome = merged(moving, fresh, outcome)
            return outcome

        return reset, repeat

    def transform_specs(self, specs: Specs) -> None:
        """Nothing changes but bounds of rewards, which become those of sums."""
        check_root_done(specs, self)
        self._rewards = leaf_keys(specs.reward)
        for key in self._rewards:
            specs.reward[key] = _sum_spec(specs.reward[key], self.frame_skip)

    def __repr__(self) -> str:
        return f"FrameSkipTransform(frame_skip={self.frame_skip})"


def _sum_spec(spec: TensorSpec, count: int) -> TensorSpec:
    """Return the spec of a sum of up to `count` values."""
    if not isinstance(spec, Bounded):
        return spec
    if not spec.dtype.is_floating_point:
        return Unbounded(spec.shape, dtype=spec.dtype, device=spec.device)
    low, high = spec.space.low, spec.space.high
    return Bounded(low.minimum(count * low), high.maximum(count * high), dtype=spec.dtype, device=spec.device)


class RandomTruncationTransform(RandomTransform):
    """Truncates episodes at random lengths, so that the elements of a batch do not begin and end together.

    The first episode of an element is cut after a number of steps drawn from 1 to `max_horizon`, a later one with a
    probability from `min_horizon` to `max_horizon`, otherwise at `max_horizon`. Numbers are drawn with the seed of the
    environment.

    Reads ``step_count``; writes ``truncated`` and ``done`` under ``next``.

    Args:
        min_horizon: Shortest length of a random cut after the first episode, at least 1.
        max_horizon: Longest length, at least `min_horizon`.
        prob: Probability of a random cut.
        first_episode_prob: The same for the second episode of an element, the first one after its initial cut;
            `prob` if None.

    Raises:
        ArgumentError: If a length or probability is out of range.
        SpecError: If there is no ``step_count``.

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
            raise ArgumentError(
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


@foreign_arguments()
class EndOfLifeTransform(Transform):
    """Writes whether a step lost a life or ended the episode.

    Reads ``lives`` and ``done``; writes ``lives``, int64 ``[*B, 1]``, and ``end-of-life``, bool ``[*B, 1]``, at the
    root (false) and under ``next``. Pass ``end-of-life`` to a loss or an estimator as its ``done``, or end episodes by
    it with a `TerminateTransform`.

    Args:
        eol_key: The mark.
        lives_key: Number of lives; of an Atari game from ``GymEnv(..., info_keys=["lives"])``.
        done_key: End of the episode.

    Raises:
        SpecError: If the environment does not write the lives.

    Order: before `FrameSkipTransform`, to see each frame.

    Example:
        >>> EndOfLifeTransform(eol_key="life_lost")
        EndOfLifeTransform(in_keys=['lives', 'done'], out_keys=['lives', 'life_lost'])
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self,
        eol_key: NestedKey = "end-of-life",
        lives_key: NestedKey = "lives",
        done_key: NestedKey = "done",
    ) -> None:
        super().__init__([lives_key, done_key], [lives_key, eol_key])
        self.eol_key, self.lives_key, self.done_key = unwrap(eol_key), unwrap(lives_key), unwrap(done_key)

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        done = root[self.done_key]
        root[self.lives_key] = root[self.lives_key].reshape(done.shape).to(torch.int64)
        root[self.eol_key] = torch.zeros_like(done)
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        done = outcome[self.done_key]
        outcome[self.lives_key] = lives = outcome[self.lives_key].reshape(done.shape).to(torch.int64)
        outcome[self.eol_key] = (lives < from_root(root, self.lives_key, self)) | done
        return outcome

    def transform_specs(self, specs: Specs) -> None:
        """Add the mark to the observation."""
        done = specs.done.get(self.done_key, None)
        if specs.observation.get(self.lives_key, None) is None or done is None:
            raise SpecError(
                f"{self!r} reads {key_str(self.lives_key)} and {key_str(self.done_key)}, and the environment does not"
                " write both: create a Gymnasium environment with info_keys=['lives']"
            )
        specs.observation[self.lives_key] = Unbounded(done.shape, dtype=torch.int64, device=specs.device)
        specs.add("observation", self.eol_key, flag_spec(done.shape, specs.device), self)


class TerminateTransform(Transform):
    """Terminates episodes when a condition on the outcome of a step holds.

    Writes ``terminated`` and ``done`` under ``next``, next to each ``done`` of the environment.

    Args:
        stop: Function that receives the TensorDict under ``next``; returns a bool, or a bool tensor ``[*B]`` or ``[*B,
            1]``.
        write_done: Whether termination sets ``done`` too; it must be true.

    Raises:
        ArgumentError: If `write_done` is false.
        SpecError: If the condition has another shape.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(), TerminateTransform(lambda td: td["observation"][..., 0] < 2))
        >>> env.rollout(5)["next", "terminated"].flatten()
        tensor([True])
    """

    def __init__(self, stop: Callable[[Any], Tensor | bool], *, write_done: bool = True) -> None:
        super().__init__()
        if not write_done:
            raise ArgumentError(
                "TerminateTransform: write_done=False sets 'terminated' without 'done', but done = terminated |"
                " truncated; to mark steps and not end the episode, write another entry"
            )
        self.stop = stop

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        del root
        stops = self.stop(outcome)
        for terminated, done in self._flags:
            flag = outcome[done]
            over = element_mask(stops, flag, self)
            outcome[terminated] = outcome[terminated] | over
            outcome[done] = flag | over
        return outcome

    def transform_specs(self, specs: Specs) -> None:
        """Nothing changes."""
        dones = [as_tuple(key) for key in leaf_keys(specs.done) if as_tuple(key)[-1] == "done"]
        self._flags = [(unwrap((*key[:-1], "terminated")), unwrap(key)) for key in dones]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self.stop, '__name__', type(self.stop).__name__)})"
