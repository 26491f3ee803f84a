"""Conformance of an environment."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch

from rl.core.errors import CheckError
from rl.core.interfaces import Env
from rl.core.keys import key_str, leaf_keys, unwrap
from rl.core.mdp import FLAGS, done_levels
from rl.testing._env_judge import EnvJudge, first_difference
from rl.testing._env_runs import EnvDriver, EnvStep, check_leaf_form
from rl.testing._report import Report, raising, require, require_plain, require_same

_SHORT = 30


def check_env(make_env: Callable[[], Env], *, seed: int = 0, steps: int = 200, time_limit: int | None = None) -> Report:
    """Check an environment: what `examine_env` judges, then seeds, state, time limit, memory, and its leaf form.

    What was returned before must stay as it was.

    Args:
        make_env: Function that creates an `rl.core.interfaces.Env`, called several times. The environment need
            not inherit from anything.
        seed: Seed for `set_seed`.
        steps: Number of random steps of a run.
        time_limit: Steps after which the environment truncates an episode; with it, an earlier end that is reported
            as truncated is an error.

    Returns:
        What was not exercised, for example episode ends if there was none; each sentence is also a
        `NotExercisedWarning`.

    Raises:
        CheckError: An `AssertionError` with the reason first. It lists all faults that `examine_env` finds, else the
            first one of the other checks.

    Example:
        >>> from rl.testing import CountingEnv
        >>> report = check_env(lambda: CountingEnv(length=3, batch_size=(2,)))
        >>> [sentence.partition(":")[0] for sentence in report.not_exercised]
        ['ends reported as truncated', 'whether set_seed uses its argument']
    """
    env = make_env()
    owner = type(env).__name__
    report = Report(owner)
    judge = EnvJudge(env, seed, steps)
    try:
        rows = judge.examine()
    finally:
        env.close()
    faults = [f"{row.name}: {row.fault}" for row in rows if row.fault is not None]
    if faults:
        raise CheckError("\n".join(faults) + f" ({owner})") from judge.error
    for row in rows:
        if row.verdict != "ok":
            report.skip(f"{row.name}: {row.got}")
    with raising("another instance, or the leaf form,", owner):
        _check_ends(judge, time_limit, report, owner)
        _check_memory(make_env, judge.run, owner)
        _check_twin(make_env, judge.run[:_SHORT], seed)
        _check_seeds(make_env, seed, min(steps, _SHORT), report)
        _check_state(make_env, seed, min(steps, _SHORT), report)
        check_leaf_form(make_env, judge.run[:_SHORT], seed)
    try:
        env.close()
    except Exception as error:
        raise CheckError(f"close, called a second time, raised {type(error).__name__}: {error} ({owner})") from error
    return report.warn()


def _check_ends(judge: EnvJudge, time_limit: int | None, report: Report, owner: str) -> None:
    """Compare the ages at which episodes were truncated with the time limit; report kinds of ends without example."""
    driver, keys = judge.driver, leaf_keys(judge.env.full_done_spec)
    if not any(driver.over(step.outcome) for step in judge.run):
        return
    levels = [driver.level] if driver.one_level else done_levels(keys)
    for flag in FLAGS[1:]:
        own = [key for key in (unwrap((*level, flag)) for level in levels) if key in keys]
        if own and not any(bool(step.outcome.get(key).any()) for step in judge.run for key in own):
            limit = f", although the time limit is {time_limit}" if time_limit and flag == "truncated" else ""
            report.skip(f"ends reported as {flag}: none in {judge.steps} random steps{limit}; pass `steps=`")
    if not driver.one_level:
        return
    cut = unwrap((*driver.level, "truncated"))
    age, ages = torch.zeros((), dtype=torch.int64), set[int]()  # steps of running episodes, and of truncated ones
    for step in judge.run:
        over = driver.per_episode(step.outcome.get(driver.done_keys[0])).cpu()
        age = age + torch.ones_like(over, dtype=torch.int64)
        if cut in keys:
            ages.update(age[driver.per_episode(step.outcome.get(cut)).cpu()].tolist())
        late = time_limit is not None and bool((~over & (age >= time_limit)).any())
        require(not late, f"an episode goes on after the time limit of {time_limit}", owner)
        early = [time_limit is not None and number < time_limit for number in ages]
        text = f"a terminal state is reported as truncated: after {sorted(ages)[:1]} steps, the limit is {time_limit}"
        require(not any(early), f"{text}; learners bootstrap there", owner)
        age = age.masked_fill(over, 0)
    if ages and time_limit is None:
        text = (
            f"whether ends reported as truncated are time limits: episodes were truncated after {sorted(ages)} steps;"
        )
        report.skip(f"{text} pass `time_limit=`")


def _check_memory(make_env: Callable[[], Any], run: list[EnvStep], owner: str) -> None:
    """Check that what resets and steps returned has stayed as it was, and that two resets share no memory."""
    for step in run:
        for what, then, now in zip(("step", "reset"), (step.outcome, step.following), step.returned, strict=True):
            require_same(then, now, f"{what} reuses its buffer: a later call overwrote what it returned", owner)
    with EnvDriver(make_env(), 0) as driver:
        first, second = driver.env.reset(), driver.env.reset()
        for key in driver.observation_keys:
            one, two = first.get(key), second.get(key)
            shared = isinstance(one, torch.Tensor) and one.numel() > 0 and one.data_ptr() == two.data_ptr()
            text = f"reset reuses its buffer: two resets returned {key_str(key)} in the same memory"
            require(not shared, text, owner)


def _check_twin(make_env: Callable[[], Any], run: list[EnvStep], seed: int) -> None:
    """Check that another environment of the same seed does the same with `step_and_maybe_reset`."""
    with EnvDriver(make_env(), seed) as driver:
        env, owner, keys = driver.env, driver.owner, driver.observation_keys
        env.set_seed(seed)
        td = env.reset()
        start = run[0].root.exclude(*driver.action_keys)
        require_same(td, start, f"two environments of seed {seed} start differently", owner)
        state = getattr(env, "full_state_spec", None)
        allowed = [*keys, *(() if state is None else leaf_keys(state))]
        for step in run:
            outcome, td = driver.step(td, step.root.select(*driver.action_keys))
            text = "step and step_and_maybe_reset differ, with one seed and the same actions"
            require_same(outcome, step.outcome, text, owner)
            left = [key for key in driver.reward_keys if key in leaf_keys(td) and key not in allowed]
            text = f"step_and_maybe_reset left {left} in the root of the following step; a reward stands under 'next'"
            require(not left, text, owner)
            require_same(
                td.select(*keys), step.following.select(*keys), "the root of the following step differs", owner
            )


def _check_seeds(make_env: Callable[[], Any], seed: int, steps: int, report: Report) -> None:
    """Check that another seed yields other episodes; the judge has seen that a seed repeats its own."""
    with EnvDriver(make_env(), seed) as driver:
        judge = EnvJudge(driver.env, seed, steps)
        run = judge.walk("seeds")
        random = first_difference(run, judge.walk("seeds", first=None)) is not None
        others = range(1, 17 if random else 2)  # few random bits can be equal by chance
        differ = any(first_difference(run, judge.walk("seeds", first=other)) is not None for other in others)
        if judge.error is not None:
            raise judge.error
        if differ:
            return
    text = f"set_seed ignores its argument: seeds {seed} to {seed + others[-1]} yield the same run, no seed another one"
    require(not random, text, driver.owner)
    text = f"whether set_seed uses its argument: seeds {seed} and {seed + 1} yield the same run"
    report.skip(f"{text}, and nothing in it looks random")


def _check_state(make_env: Callable[[], Env], seed: int, steps: int, report: Report) -> None:
    """Another environment continues where a state was taken."""
    with EnvDriver(make_env(), seed) as driver, EnvDriver(make_env(), seed) as other:
        env, into = driver.env, other.env
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
        for _ in range(steps):
            action = driver.act()
            outcome, td = driver.step(td, action)
            again, root = other.step(root, action)
            reason = "the state_dict is incomplete: after load_state_dict, the run continues differently"
            require_same(outcome, again, reason, driver.owner)
            keys = driver.observation_keys
            require_same(td.select(*keys), root.select(*keys), reason, driver.owner)
