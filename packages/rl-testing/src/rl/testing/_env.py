"""Conformance of an environment."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase

from rl.core.env_specs import check_entries, check_env_specs, check_flags, group_faults
from rl.core.errors import CheckError
from rl.core.interfaces import Env, missing_env_members
from rl.core.keys import NestedKey, as_tuple, key_str, leaf_keys
from rl.core.specs import Composite
from rl.testing._env_runs import EnvDriver, EpisodeEnds, check_inner_reset, check_leaf_form, naming_calls
from rl.testing._report import Report, fail, raising, require, require_plain, require_same, same_values

_ROLES = ("observation_spec", "full_action_spec", "full_reward_spec", "full_done_spec")
_SHORT = 30


def check_env(make_env: Callable[[], Env], *, seed: int = 0, steps: int = 200, time_limit: int | None = None) -> Report:
    """Check an environment: specs, flags, terminal observations, partial resets, seeds, state, and its leaf form.

    Every step is compared with the specs, so that NaN and values out of bounds are found later in an episode and at
    its end. What was returned before must stay as it was. The specs of a group must have the number of agents of its
    reward, see `group_faults`.

    Args:
        make_env: Function that creates an `rl.core.interfaces.Env`, called several times. The environment need
            not inherit from anything.
        seed: Seed for `set_seed`.
        steps: Largest number of random steps; three episode ends suffice if some are terminated and some truncated.
        time_limit: Steps after which the environment truncates an episode; with it, an earlier end that is reported
            as truncated is an error.

    Returns:
        What was not exercised, for example episode ends if there was none; each sentence is also a
        `NotExercisedWarning`.

    Raises:
        CheckError: An `AssertionError` with the reason first.

    Example:
        >>> from rl.testing import CountingEnv
        >>> report = check_env(lambda: CountingEnv(length=3, batch_size=(2,)))
        >>> [sentence.partition(":")[0] for sentence in report.not_exercised]
        ['ends reported as truncated', 'whether set_seed uses its argument']
    """
    env = make_env()
    owner = type(env).__name__
    report = Report(owner)
    make = naming_calls(make_env)
    try:
        with raising("a rollout of three steps", owner):
            _check_protocol(env, owner)
            check_env_specs(env, seed=seed)
    finally:
        env.close()
    with raising("the environment or its leaf form", owner):
        _check_behaviour(make, seed, steps, time_limit, report)
    try:
        env.close()
    except Exception as error:
        raise CheckError(f"close, called a second time, raised {type(error).__name__}: {error} ({owner})") from error
    return report.warn()


def _check_behaviour(
    make_env: Callable[[], Any], seed: int, steps: int, time_limit: int | None, report: Report
) -> None:
    with EnvDriver(make_env, seed) as driver:
        _check_steps(driver, seed, steps, time_limit, report)
    with EnvDriver(make_env, seed) as driver:
        _check_seed(driver, make_env, seed, steps)
    with EnvDriver(make_env, seed) as driver:
        _check_seeds(driver, seed, steps, report)
    with EnvDriver(make_env, seed) as driver:
        _check_partial_reset(driver, seed, report)
    _check_others_continue(make_env, seed, steps, report)
    check_inner_reset(make_env, seed, steps)
    _check_state(make_env, seed, steps, report)
    check_leaf_form(make_env, seed, steps)


def _check_protocol(env: Any, owner: str) -> None:
    missing = missing_env_members(env)
    require(not missing, f"no rl.core.interfaces.Env: lacks {missing}", owner)
    for role in _ROLES:
        spec = getattr(env, role)
        require(isinstance(spec, Composite), f"{role} must be a Composite, got {type(spec).__name__}", owner)
        require(
            spec.shape == env.batch_size,
            f"{role} has shape {tuple(spec.shape)}; specs that an environment hands out carry its batch"
            f" {tuple(env.batch_size)}",
            owner,
        )
    for key in env.full_reward_spec.keys(include_nested=True, leaves_only=True):
        shape = env.full_reward_spec[key].shape
        require(
            len(shape) > len(env.batch_size),
            f"the reward {key_str(key)} has shape {list(shape)}; it must be {[*env.batch_size, 1]}, or it broadcasts"
            " with values",
            owner,
        )
    faults = group_faults(env)
    require(not faults, "\n".join(f"{key_str(key)}: {fault}" for key, fault in faults.items()), owner)
    td = env.reset().update(env.full_action_spec.rand())
    stepped = env.step(td)
    require(stepped is td, "step must return its input, with the outcome under 'next'", owner)
    require(td.get("next", None) is not None, f"step wrote nothing under 'next' (keys: {list(td.keys())})", owner)


# ---------------------------------------------------------------------- steps


class _ReturnedTensors:
    """Everything that was returned so far, and what it was then."""

    def __init__(self, owner: str) -> None:
        self._who = owner
        self._kept: list[tuple[str, dict[Any, Any], TensorDictBase]] = []

    def keep(self, what: str, entries: TensorDictBase) -> None:
        held = dict(entries.items(include_nested=True, leaves_only=True))
        self._kept.append((what, held, entries.clone()))

    def check(self) -> None:
        for what, held, before in self._kept:
            for key, value in held.items():
                require(
                    same_values(value, before.get(key)),
                    f"{what} reuses its buffer: {key_str(key)} that it returned was overwritten by a later call",
                    self._who,
                )


def _check_steps(driver: EnvDriver, seed: int, steps: int, time_limit: int | None, report: Report) -> None:
    """Check that steps write what the specs say, under ``next`` only, and change nothing that was returned."""
    env, owner = driver.env, driver.owner
    returned = env.set_seed(seed)
    require(isinstance(returned, int), f"set_seed must return the next seed, got {type(returned).__name__}", owner)
    returned_tensors, ends = _ReturnedTensors(owner), EpisodeEnds(driver, time_limit)
    first, td = env.reset(), env.reset()
    for key in driver.observation_keys:
        one, two = first.get(key), td.get(key)
        shared = isinstance(one, torch.Tensor) and one.numel() > 0 and one.data_ptr() == two.data_ptr()
        require(not shared, f"reset reuses its buffer: two resets returned {key_str(key)} in the same memory", owner)
    returned_tensors.keep("reset", td)
    require(not driver.over(td), "reset returned done flags that are true", owner)
    for _ in range(steps):
        td.update(driver.act())
        before = td.exclude("next").clone()
        stepped = env.step(td)
        require(stepped is td, "step must return its input, with the outcome under 'next'", owner)
        require_same(stepped.exclude("next"), before, "step changed root entries", owner)
        outcome = _checked_outcome(driver, stepped, returned_tensors)
        root = driver.advance(stepped)
        if driver.over(outcome):
            fresh = env.reset(driver.mark_reset(root))
            require_same(
                stepped.get("next"),
                outcome,
                "reset overwrote what the last step wrote under 'next': the last observation is lost",
                owner,
            )
            _check_fresh(driver, fresh, outcome)
            returned_tensors.keep("reset", fresh)
            root = fresh
        ends.record(before, outcome, root)
        td = root
        if ends.enough:
            break
    returned_tensors.check()
    ends.check(report, steps)


def _checked_outcome(driver: EnvDriver, stepped: TensorDictBase, returned_tensors: _ReturnedTensors) -> TensorDictBase:
    env, where = driver.env, f"'next' of {driver.owner}.step"
    outcome = stepped.get("next").clone()
    specs = [env.observation_spec, env.full_reward_spec, env.full_done_spec]
    check_entries(outcome, specs, env, where)
    check_flags(outcome, env, where)
    for key in driver.reward_keys:
        value = outcome.get(key)
        require(
            not value.is_floating_point() or bool(value.isfinite().all()),
            f"{key_str(key)} is not finite: {value.flatten()[~value.flatten().isfinite()][:1].tolist()}",
            where,
        )
    returned_tensors.keep("step", stepped.get("next"))
    return outcome


def _check_fresh(driver: EnvDriver, fresh: TensorDictBase, outcome: TensorDictBase) -> None:
    """After a partial reset no flag is set, and what was not reset is what it was."""
    env, owner = driver.env, f"{driver.owner}.reset"
    check_entries(fresh.select(*driver.observation_keys, strict=False), [env.observation_spec], env, owner)
    require(not driver.over(fresh), "a done flag of an element that was reset is still true", owner)
    left = [key for key in leaf_keys(fresh) if as_tuple(key)[-1] == "_reset"]
    require(not left, f"left {left} in its input: it must be taken out", owner)
    if driver.one_level:
        done = outcome.get(driver.done_keys[0])
        for key in driver.observation_keys:
            now, then = fresh.get(key), outcome.get(key)
            over = driver.of_entry(done, key, then) if isinstance(then, torch.Tensor) else driver.per_element(done)
            same = same_values(now[~over], then[~over])
            require(same, f"the reset of finished elements changed {key_str(key)} of others", owner)


def _check_partial_reset(driver: EnvDriver, seed: int, report: Report) -> None:
    """Check that a reset of the first element does not change the others."""
    env, owner = driver.env, f"{driver.owner}.reset"
    if env.batch_size.numel() < 2:
        return
    if not driver.one_level:
        report.skip("partial resets: the done flags are in several groups, and not at the root")
        return
    env.set_seed(seed)
    td = env.reset()
    for _ in range(2):
        _, td = driver.step(td, driver.act())
    mask = driver.first_element(td)
    held = {key: td.get(key) for key in driver.observation_keys}
    before = {key: value.clone() for key, value in held.items()}
    fresh = env.reset(td.set(driver.at_level("_reset"), mask))
    others = ~driver.per_element(mask)
    for key, value in before.items():
        kept = same_values(held[key], value)
        require(kept, f"the reset of one element wrote into a tensor of its input, {key_str(key)}", owner)
        kept = same_values(fresh.get(key)[others], value[others])
        require(kept, f"the reset of one element changed {key_str(key)} of the others", owner)
    require(not driver.over(fresh), "the reset of one element returned done flags that are true", owner)


def _check_others_continue(make_env: Callable[[], Any], seed: int, steps: int, report: Report) -> None:
    """After a reset of the first element, the others continue to their ends as they do without it."""
    with EnvDriver(make_env, seed) as driver:
        owner = f"{driver.owner}.reset"
        if driver.env.batch_size.numel() < 2 or not driver.one_level:
            return
    plain, reset = (_others(make_env, seed, steps, resets) for resets in (0, 1))
    key = _difference(plain, reset)
    if key is None:
        return
    if any(_difference(reset, _others(make_env, seed, steps, resets)) is not None for resets in (2, 3)):
        report.skip(
            "whether a partial reset leaves the others alone: what they do afterwards depends on random numbers that"
            " the reset draws"
        )
        return
    fail(f"after the reset of one element, {key_str(key)} of the others is not what it is without that reset", owner)


def _others(make_env: Callable[[], Any], seed: int, steps: int, resets: int) -> list[dict[NestedKey, torch.Tensor]]:
    """Return the outcomes of all elements but the first, until each has ended once, after resets of the first one."""
    seen: list[dict[NestedKey, torch.Tensor]] = []
    with EnvDriver(make_env, seed) as driver:
        env = driver.env
        env.set_seed(seed)
        td = env.reset()
        for _ in range(2):
            _, td = driver.step(td, driver.act())
        mask = driver.first_element(td)
        for _ in range(resets):
            td = env.reset(td.set(driver.at_level("_reset"), mask.clone()))
        alive = ~driver.per_element(mask)
        for step in range(steps):
            env.set_seed(seed + step)  # the same random numbers, whatever the resets have drawn
            action = driver.act()
            outcome, td = driver.step(td, action)
            keys = [*driver.observation_keys, *driver.reward_keys, *driver.done_keys]
            values = {key: outcome.get(key) for key in keys}
            seen.append({key: value[alive].clone() for key, value in values.items() if isinstance(value, torch.Tensor)})
            alive = alive & ~driver.per_element(outcome.get(driver.done_keys[0]))
            if not bool(alive.any()):
                break
    return seen


def _difference(
    left: list[dict[NestedKey, torch.Tensor]], right: list[dict[NestedKey, torch.Tensor]]
) -> NestedKey | None:
    """Return the first key in which two runs differ."""
    for one, two in zip(left, right, strict=False):
        for key, value in one.items():
            if not same_values(value, two[key]):
                return key
    return None


# ---------------------------------------------------------------------- seeds and states


def _check_seed(driver: EnvDriver, make_env: Callable[[], Env], seed: int, steps: int) -> None:
    """Two environments of one seed, given the same actions, do the same; each way of stepping does."""
    env, owner, twin = driver.env, driver.owner, make_env()
    try:
        env.set_seed(seed)
        twin.set_seed(seed)
        one, two = env.reset(), twin.reset()
        require_same(one, two, f"two environments of seed {seed} start differently", owner)
        for _ in range(min(steps, _SHORT)):
            action = driver.act()
            stepped = twin.step(two.update(action.clone()))
            done, one = env.step_and_maybe_reset(one.update(action))
            require_same(
                done.get("next"),
                stepped.get("next"),
                "step and step_and_maybe_reset differ, with one seed and the same actions",
                owner,
            )
            two = driver.advance(stepped)
            two = twin.reset(driver.mark_reset(two)) if driver.over(stepped.get("next")) else two
            _check_following_root(driver, one, two)
    finally:
        twin.close()


def _check_following_root(driver: EnvDriver, one: TensorDictBase, two: TensorDictBase) -> None:
    written, owner = driver.observation_keys, driver.owner
    rewards = [key for key in driver.reward_keys if key in leaf_keys(one)]
    rewards = [key for key in rewards if key not in written and key not in driver.state_keys]
    require(
        not rewards,
        f"step_and_maybe_reset left {rewards} in the root of the following step; a reward stands under 'next' alone",
        owner,
    )
    require_same(one.select(*written), two.select(*written), "the root of the following step differs", owner)


def _check_seeds(driver: EnvDriver, seed: int, steps: int, report: Report) -> None:
    """Check that a seed repeats its episodes, and that another seed gives other ones."""
    steps = min(steps, _SHORT)
    run = _run(driver, steps, seed)
    for one, two in zip(run, _run(driver, steps, seed), strict=True):
        reason = f"set_seed has no effect: seed {seed}, set twice, gives two different runs"
        require_same(one, two, reason, driver.owner)
    random = not _same_runs(run, _run(driver, steps, None))
    others = range(seed + 1, seed + (17 if random else 2))  # few random bits can be equal by chance
    if any(not _same_runs(run, _run(driver, steps, other)) for other in others):
        return
    require(
        not random,
        f"set_seed ignores its argument: seeds {seed} to {others[-1]} give the same run, although runs differ when"
        " no seed is set between them",
        driver.owner,
    )
    report.skip(
        f"whether set_seed uses its argument: seeds {seed} and {seed + 1} give the same run, and nothing in it looks"
        " random"
    )


def _run(driver: EnvDriver, steps: int, seed: int | None) -> list[TensorDictBase]:
    """Run the same random actions after a reset; with None, the environment's generator continues."""
    if seed is not None:
        driver.env.set_seed(seed)
    driver.rewind()
    td = driver.env.reset()
    seen = [td.clone()]
    for _ in range(steps):
        outcome, td = driver.step(td, driver.act())  # sampled at each step: legal actions may depend on the state
        seen += [outcome.clone(), td.select(*driver.observation_keys).clone()]
    return seen


def _same_runs(run: list[TensorDictBase], other: list[TensorDictBase]) -> bool:
    pairs = zip(run, other, strict=True)
    return all(same_values(one.get(key), two.get(key)) for one, two in pairs for key in leaf_keys(one))


def _check_state(make_env: Callable[[], Env], seed: int, steps: int, report: Report) -> None:
    """Another environment continues where a state was taken."""
    with EnvDriver(make_env, seed) as driver, EnvDriver(make_env, seed) as other:
        env: Any = driver.env
        into: Any = other.env
        if not hasattr(env, "state_dict") or not hasattr(env, "load_state_dict"):
            report.skip("exact continuation: there is no state_dict and load_state_dict")
            return
        env.set_seed(seed)
        td = env.reset()
        for _ in range(min(steps, 5)):
            _, td = driver.step(td, driver.act())
        state = copy.deepcopy(env.state_dict())
        require_plain(state, "state_dict", driver.owner)
        root = td.clone()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the returned value is checked
            exact = into.load_state_dict(copy.deepcopy(state))
        if exact is False:
            report.skip("exact continuation: load_state_dict says that it cannot restore the state")
            return
        for _ in range(min(steps, _SHORT)):
            action = driver.act()
            outcome, td = driver.step(td, action)
            again, root = other.step(root, action)
            reason = "the state_dict is incomplete: after load_state_dict, the run continues differently"
            require_same(outcome, again, reason, driver.owner)
            keys = driver.observation_keys
            require_same(td.select(*keys), root.select(*keys), reason, driver.owner)
