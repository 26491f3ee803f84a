"""Runs of an environment for its checks: the driver, ends of episodes, the leaf form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.interfaces import Env, Leaves
from rl.core.keys import NestedKey, as_tuple, key_str, leaf_keys, unwrap
from rl.core.mdp import FLAGS, StepMDP, done_levels
from rl.testing._report import Report, fail, raising, require, require_same, same_values

_CALLS = ("load_state_dict", "lowered", "reset", "set_seed", "state_dict", "step", "step_and_maybe_reset")


class _NamedCalls:
    """An environment whose exceptions name it, the call and the number of steps so far."""

    def __init__(self, env: Env) -> None:
        self._env, self._steps = env, 0

    def __getattr__(self, name: str) -> Any:
        value: Any = getattr(self._env, name)
        if name not in _CALLS:
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            what = f"{name}, after {self._steps} steps,"
            self._steps += name.startswith("step")
            with raising(what, self.owner):
                return value(*args, **kwargs)

        return call

    @property
    def owner(self) -> str:
        """The environment's class."""
        return type(self._env).__name__


def naming_calls(make_env: Callable[[], Env]) -> Callable[[], Any]:
    """`make_env`, of environments whose exceptions are `CheckError`."""
    return lambda: _NamedCalls(make_env())


class EnvDriver:
    """An environment, and the actions that it is given.

    Args:
        make_env: Function that `naming_calls` returned.
        seed: Seed of the actions.
    """

    def __init__(self, make_env: Callable[[], Any], seed: int) -> None:
        self.env = make_env()
        self.owner: str = self.env.owner
        self.advance = StepMDP.from_env(self.env)
        self.observation_keys = leaf_keys(self.env.observation_spec)
        self.reward_keys = leaf_keys(self.env.full_reward_spec)
        state = getattr(self.env, "full_state_spec", None)
        self.state_keys: list[NestedKey] = [] if state is None else leaf_keys(state)
        levels = done_levels(leaf_keys(self.env.full_done_spec))
        self.done_keys = [unwrap((*level, "done")) for level in (levels[:1] if () in levels else levels)]
        """Flags that end an episode: that of the root, if there is one."""
        self._seed, self._generator = seed, torch.Generator()
        self.rewind()

    def __enter__(self) -> EnvDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.env.close()

    @property
    def one_level(self) -> bool:
        """Whether episodes are ended by the flag at the root, or by those of the only group."""
        return len(self.done_keys) == 1

    @property
    def level(self) -> tuple[str, ...]:
        """Where the flags that end episodes are, if it is one level."""
        return as_tuple(self.done_keys[0])[:-1]

    def at_level(self, name: str) -> NestedKey:
        """Return a key beside the flags that end episodes."""
        return unwrap((*self.level, name))

    def rewind(self) -> None:
        """Draw the same random numbers for actions again."""
        self._generator.manual_seed(self._seed)

    def act(self) -> TensorDict:
        """Random actions."""
        return self.env.full_action_spec.rand(generator=self._generator)

    def over(self, entries: Any) -> bool:
        """Whether an episode has ended."""
        return any(bool(entries.get(key).any()) for key in self.done_keys)

    def per_element(self, flag: Tensor) -> Tensor:
        """Return a done flag ``[*B, 1]``, or one for each agent of a group ``[*B, n, 1]``, as ``[*B]``."""
        return flag.flatten(len(self.env.batch_size)).any(-1)

    def per_episode(self, flag: Tensor) -> Tensor:
        """Return a done flag as ``[*B]``, that of a group as ``[*B, n]``."""
        return flag.any(-1) if self.level else self.per_element(flag)

    def of_entry(self, flag: Tensor, key: NestedKey, value: Tensor) -> Tensor:
        """Return a done flag for an entry: ``[*B, n]`` if the entry is one of the group of agents, else ``[*B]``."""
        episodes = self.per_episode(flag)
        own = as_tuple(key)[: len(self.level)] == self.level and value.shape[: episodes.ndim] == episodes.shape
        return episodes if own else self.per_element(flag)

    def first_element(self, root: TensorDictBase) -> Tensor:
        """Return the mask of a reset of the first element of the batch, all agents of it."""
        mask = torch.zeros_like(root.get(self.done_keys[0]))
        mask.view(self.env.batch_size.numel(), -1)[0] = True
        return mask

    def mark_reset(self, root: TensorDictBase) -> TensorDictBase:
        """Mark what has ended for a reset."""
        for key in self.done_keys:
            root.set(unwrap((*as_tuple(key)[:-1], "_reset")), root.get(key).clone())
        return root

    def step(self, root: TensorDictBase, actions: TensorDict) -> tuple[TensorDictBase, TensorDictBase]:
        """Return the outcome of a step, and the following root, with finished episodes reset."""
        stepped, following = self.env.step_and_maybe_reset(root.update(actions.clone()))
        return stepped.get("next"), following


_LOST = (
    "the terminal observation is lost: at episode ends, 'next' holds an observation of the following episode;"
    " an environment that resets itself inside step must keep the last observation under 'next'"
)


class EpisodeEnds:
    """The ends of a run, element by element.

    Args:
        driver: Environment.
        time_limit: Steps after which it truncates; None if that is not known.
    """

    def __init__(self, driver: EnvDriver, time_limit: int | None) -> None:
        self._driver, self._limit = driver, time_limit
        self._age = torch.zeros((), dtype=torch.int64)  # steps of each running episode
        self._truncated: list[int] = []
        self._kept = self._moved = False
        self._alike = 0
        keys = leaf_keys(driver.env.full_done_spec)
        levels = [driver.level] if driver.one_level else done_levels(keys)
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
        driver = self._driver
        self.seen += driver.over(outcome)
        self._kinds |= {flag for flag, key in self._flags if bool(outcome.get(key).any())}
        if not driver.one_level:
            return
        over = driver.per_episode(outcome.get(driver.done_keys[0])).cpu()
        self._age = self._age + torch.ones_like(over, dtype=torch.int64)
        cut = outcome.get(driver.at_level("truncated"), None)
        cut = torch.zeros_like(over) if cut is None else driver.per_episode(cut).cpu()
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
        """Return the observations of each episode: those of the group, if each agent has its own."""
        values = {key: outcome.get(key) for key in self._driver.observation_keys}
        return [
            key
            for key, value in values.items()
            if isinstance(value, Tensor) and self._driver.of_entry(over.unsqueeze(-1), key, value).shape == over.shape
        ]

    def _check_limit(self, over: Tensor, cut: Tensor) -> None:
        if self._limit is None:
            return
        early = cut & (self._age < self._limit)
        require(
            not bool(early.any()),
            f"a terminal state is reported as truncated: an episode was truncated after {self._age[early][:1].tolist()}"
            f" steps, the time limit is {self._limit}; learners bootstrap there",
            self._driver.owner,
        )
        late = ~over & (self._age >= self._limit)
        require(not bool(late.any()), f"an episode goes on after the time limit of {self._limit}", self._driver.owner)

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
        if not self._driver.one_level:
            report.skip("terminal observations: the done flags are in several groups, and not at the root")
            return
        if self._alike > 1 and self._moved and not self._kept:
            fail(_LOST, self._driver.owner)
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
    """Check for a reset inside `step`, which draws from the generator: the last outcome then depends on the seed.

    Where no other step of an episode depends on the generator, that shows that the terminal observation is one of the
    following episode.
    """
    with EnvDriver(make_env, seed) as one, EnvDriver(make_env, seed) as two:
        for driver in (one, two):
            driver.env.set_seed(seed)
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


def check_leaf_form(make_env: Callable[[], Any], seed: int, steps: int) -> None:
    """Check that the leaf form gives the numbers of the TensorDict form, in tensors of its own."""
    env, generic = make_env(), make_env()
    owner = env.owner
    try:
        lower = getattr(env, "lowered", None)
        leaf = lower() if lower is not None else None
        if leaf is None:
            return
        members = ("batch_size", "reset_leaves", "step_leaves")
        absent = [name for name in members if not hasattr(leaf, name)]
        require(
            not absent, f"lowered returned a {type(leaf).__name__}, which lacks {', '.join(absent)} of LeafEnv", owner
        )
        require(leaf.batch_size == env.batch_size, "the leaf form has another batch size", owner)
        generator = torch.Generator().manual_seed(seed)
        env.set_seed(seed)
        generic.set_seed(seed)
        advance = StepMDP(
            reward_keys=leaf_keys(env.full_reward_spec),
            done_keys=leaf_keys(env.full_done_spec),
            action_keys=leaf_keys(env.full_action_spec),
        )
        root: Leaves = leaf.reset_leaves()
        td = generic.reset()
        require_same(td, root, "reset and reset_leaves differ", owner)
        kept: list[Leaves] = [root]
        plain = "done" in leaf_keys(env.full_done_spec)
        for _ in range(min(steps, 30)):
            action = env.full_action_spec.rand(generator=generator)
            root = {**root, **{key: action.get(key) for key in leaf_keys(env.full_action_spec)}}
            outcome = leaf.step_leaves(root)
            _check_own(outcome, kept, owner)
            kept.append(outcome)
            stepped, td = generic.step_and_maybe_reset(td.update(action))
            require_same(stepped.get("next"), outcome, "step and step_leaves differ", owner)
            root = advance.leaves(root, outcome)
            if plain and bool(outcome["done"].any()):
                root = leaf.reset_leaves(root, outcome["done"])
                kept.append(root)
            elif not plain and any(bool(outcome[key].any()) for key in leaf_keys(env.full_done_spec)):
                return  # a mask at the root cannot say which of several levels has ended
            for key in leaf_keys(env.observation_spec):
                require(
                    same_values(td.get(key), root[key]), f"after step and reset_leaves, {key_str(key)} differs", owner
                )
    finally:
        env.close()
        generic.close()


def _check_own(outcome: Leaves, kept: list[Leaves], owner: str) -> None:
    """Assert that no tensor shares memory with another one that was handed out."""
    seen = {_place(value): key for leaves in kept for key, value in leaves.items() if value.numel()}
    for key, value in outcome.items():
        if not value.numel():
            continue
        other = seen.get(_place(value))
        named = "" if other is None else key_str(other)
        require(
            other is None,
            f"{key_str(key)} shares its memory with {named}, handed out before it; every tensor must be new",
            f"{owner}.step_leaves",
        )
        seen[_place(value)] = key


def _place(value: Tensor) -> int:
    return value.data_ptr()
