"""The judgement of one environment, promise by promise."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.env_specs import describe_entry, entry_faults, group_faults
from rl.core.interfaces import Env, missing_env_members
from rl.core.keys import NestedKey, as_tuple, key_str, leaf_keys, unwrap
from rl.core.mdp import FLAGS, done_levels
from rl.core.specs import Composite
from rl.testing._env_runs import EnvDriver, EnvStep
from rl.testing._report import different_key, same_rows, same_values

_ROLES = ("observation_spec", "full_action_spec", "full_reward_spec", "full_done_spec")
_PARTIAL, _MARKED = "partial reset", "of marked elements only"


class EnvRow(NamedTuple):
    """One promise of an environment, and whether it is kept.

    Attributes:
        name: Key of an entry, or name of another promise.
        expected: Demand of the specs or the protocol.
        got: Behavior of the environment; where it could not be judged, the reason.
        verdict: ``"ok"``, ``"FAULT"`` or ``"not judged"``.
        fault: Reason of a ``"FAULT"``, else None.

    Example:
        >>> EnvRow("done flags", "done = terminated | truncated", "so", "ok").verdict
        'ok'
    """

    name: str
    expected: str
    got: str
    verdict: str
    fault: str | None = None


def examine_env(env: Env, *, seed: int = 0, steps: int = 200) -> list[EnvRow]:
    """Judge an environment by what one instance of it shows, and return all results.

    Random steps are compared with the specs: keys, shapes, dtypes, devices, bounds, NaN. Further rows say whether the
    specs of a group have the number of agents of its reward, the done flags agree, an episode begins without a done
    flag, inputs stay as they are, the last observation of an episode is kept, one seed yields one trajectory, and a
    partial reset (``_reset``) leaves the other elements alone. Nothing that the environment does is raised. The
    environment is left in the middle of an episode.

    Args:
        env: Environment of the `rl.core.interfaces.Env` protocol. If it has an attribute ``transform`` with a state,
            each run begins with the state that it has now, so that running statistics do not count as differences.
        seed: Seed for `set_seed`.
        steps: Number of random steps of a run.

    Raises:
        ArgumentError: If `steps` is below 1.

    Example:
        >>> from rl.testing import CountingEnv
        >>> rows = examine_env(CountingEnv(length=3, batch_size=(2,)), steps=10)
        >>> {row.verdict for row in rows}
        {'ok'}
        >>> rows[0]
        EnvRow(name="'observation'", expected='float32 [2, 1]', got='float32 [2, 1]', verdict='ok', fault=None)
    """
    return EnvJudge(env, seed, steps).examine()


def first_difference(one: list[EnvStep], two: list[EnvStep]) -> str | None:
    """Return key and step at which two runs differ; None if they agree."""
    for step, (left, right) in enumerate(zip(one, two, strict=False), 1):
        for a, b in zip(left[:3], right[:3], strict=True):
            key = different_key(a, b)
            if key is not None:
                return f"{key_str(key)} at step {step}"
    return None


class _FlagsError(Exception):
    """The done flags are not those of the spec, so that a run cannot go on."""


class EnvJudge:
    """The runs of one environment, and the rows that come from them; see `examine_env`."""

    def __init__(self, env: Any, seed: int, steps: int) -> None:
        self.env, self.seed, self.steps = env, seed, as_integer(steps, "check_env", "steps", 1)
        self.run: list[EnvStep] = []
        """The first run."""
        self.error: Exception | None = None
        """What ended a run."""
        self._rows: dict[str, EnvRow] = {}
        self._fits = self._seeded = True
        self._when = "the reset"
        transform: Any = getattr(env, "transform", None)
        self._transform = transform if hasattr(transform, "load_state_dict") else None
        self._state = None if self._transform is None else copy.deepcopy(self._transform.state_dict())

    @cached_property
    def driver(self) -> EnvDriver:
        """The environment's keys and actions."""
        return EnvDriver(self.env, self.seed)

    def examine(self) -> list[EnvRow]:
        """Return the rows."""
        self._judge_protocol()
        if not self._rows:
            for key, fault in group_faults(self.env).items():
                self._row(f"spec of {key_str(key)}", "as many agents as its reward", fault, bad="another shape")
            self._judge_runs()
        return list(self._rows.values())

    # ---- rows

    def _row(self, name: str, expected: str, fault: str | None, *, good: str = "so", bad: str = "otherwise") -> None:
        """Add a row; a fault stays, and the first one counts."""
        if name not in self._rows or self._rows[name].verdict != "FAULT":
            row = (good, "ok") if fault is None else (bad, "FAULT", fault)
            self._rows[name] = EnvRow(name, expected, *row)

    def _skip(self, name: str, expected: str, why: str) -> None:
        """Add a row that could not be judged."""
        self._rows.setdefault(name, EnvRow(name, expected, why, "not judged"))

    def _judge_protocol(self) -> None:
        env = self.env
        if missing := missing_env_members(env):
            self._row("protocol", "an Env", f"no rl.core.interfaces.Env: lacks {missing}")
            return
        batch = list(env.batch_size)
        for role in _ROLES:
            spec = getattr(env, role)
            if not isinstance(spec, Composite) or spec.shape != env.batch_size:
                got = f"one of {list(spec.shape)}" if isinstance(spec, Composite) else type(spec).__name__
                self._row(role, f"Composite {batch}", f"must be a Composite of the batch {batch}, got {got}", bad=got)
        if self._rows:
            return
        for key in leaf_keys(env.full_reward_spec):
            shape = list(env.full_reward_spec[key].shape)
            if len(shape) <= len(batch):
                fault = f"the reward has shape {shape}; it must be {[*batch, 1]}, or it broadcasts with values"
                self._row(f"spec of {key_str(key)}", f"{[*batch, 1]}", fault, bad=f"{shape}")
        flags = leaf_keys(env.full_done_spec)
        for key in (unwrap((*level, flag)) for level in done_levels(flags) for flag in FLAGS[:2]):
            if key not in flags:
                self._row(f"spec of {key_str(key)}", "a flag", f"the done spec lacks it (keys: {flags})", bad="nothing")

    def _judge_runs(self) -> None:
        try:
            following: Any = self.env.set_seed(self.seed)
        except Exception as error:  # noqa: BLE001  # whatever it is, it goes into the table
            self._seeded = False
            self._row("same seed", "one trajectory", f"set_seed raised {type(error).__name__}: {error}", bad="no seed")
        else:
            if not isinstance(following, int):
                fault = f"it must return the next seed, got {type(following).__name__}"
                self._row("set_seed", "the next seed", fault)
        self.run = self.walk("reset and steps", watch=True)
        if self.error is not None:
            return
        self._judge_last_observations()
        again = self.walk("same seed") if self._seeded else []
        if again and self.error is None:
            odd = first_difference(self.run, again)
            fault = None if odd is None else f"two runs with the same seed and actions differ in {odd}"
            self._row("same seed", "one trajectory", fault, bad="two trajectories")
            self._judge_seeded_runs()

    # ---- a run

    def walk(
        self, name: str, *, watch: bool = False, resets: int | None = None, first: int | None = 0, later: int = 0
    ) -> list[EnvStep]:
        """Return the steps of a run of random actions. An error ends it, becomes `error`, and is a fault.

        Args:
            name: Row of that fault.
            watch: Whether to compare with the specs.
            resets: Number of resets of the first element after two steps. Seeds are set again before each step but the
                first, and the run ends when the other elements have ended. None for a plain run.
            first: Number that is added to the seed of the run, which begins without a seed if it is None.
            later: Number that is added to the seeds that are set within it.
        """
        env, driver = self.env, self.driver
        run: list[EnvStep] = []
        alive, self._watch, self._when = self._others(), watch, "the reset"
        try:
            td = self._begin(first)
            for step in range(1, self.steps + 1):
                if resets is not None and step > 1:
                    for _ in range(resets if step == 3 else 0):
                        td = self._reset(td, driver.first_element(td))
                    env.set_seed(self.seed + later + step)  # draw alike, whatever the resets have drawn
                self._when = f"step {step}"
                run.append(self._step(td))
                td = run[-1].returned[1].copy()
                if resets is not None and step > 2:
                    alive &= ~driver.per_element(run[-1].outcome.get(driver.done_keys[0])).cpu()
                    if not bool(alive.any()):
                        break
        except Exception as error:  # noqa: BLE001  # whatever it is, it goes into the table
            self.error = error
            if not isinstance(error, _FlagsError):
                text = f"{self._when} raised {type(error).__name__}: {error}"
                self._row(name, "no error", text, bad=type(error).__name__)
        return run

    def _others(self) -> Tensor:
        """Return which elements are not the first of several, bool ``[*B]``."""
        others = torch.ones(self.env.batch_size, dtype=torch.bool)
        others.view(-1)[0] = others.numel() == 1
        return others

    def _begin(self, first: int | None) -> TensorDictBase:
        env = self.env
        if self._transform is not None:  # running statistics begin again
            self._transform.load_state_dict(copy.deepcopy(self._state))
        if self._seeded and first is not None:
            env.set_seed(self.seed + first)
        self.driver.rewind()
        td = env.reset()
        if self._watch:
            self._judge_entries(td, [env.observation_spec, env.full_done_spec], ())
        self._judge_start(td, leaf_keys(env.full_done_spec))
        return td

    def _step(self, td: TensorDictBase) -> EnvStep:
        """Step with random actions, reset what has ended, and judge both."""
        driver = self.driver
        td.update(driver.act())
        before = td.exclude("next").clone()
        stepped = self.env.step(td)
        if self._watch:
            self._judge_step(td, before, stepped)
        returned = stepped.get("next").copy()
        outcome = returned.clone()
        following = driver.advance(stepped)
        if driver.over(outcome):
            following = self._reset(following, None)
            if (key := different_key(outcome, returned)) is not None:
                text = f"the reset after {self._when} overwrote {key_str(key)} under 'next': the last one is lost"
                self._row("last observation of an episode", "under 'next'", text, bad="overwritten")
        return EnvStep(before, outcome, following.clone(), (returned, following.copy()))

    def _reset(self, root: TensorDictBase, mask: Tensor | None) -> TensorDictBase:
        """Reset the elements of a mask, or those that have ended if it is None, and judge that."""
        driver = self.driver
        held = {key: root.get(key, None) for key in driver.observation_keys}
        then = {key: value.clone() for key, value in held.items() if isinstance(value, Tensor)}
        root = driver.mark_reset(root, mask)
        marked = root.get(unwrap((*driver.level, "_reset"))).clone()
        fresh = self.env.reset(root)
        over = [key_str(key) for key, value in then.items() if not same_values(held[key], value)]
        text = f"the reset after {self._when} wrote into {', '.join(over)} of its input" if over else None
        self._row("input of a reset", "kept", text, good="kept", bad="changed")
        if left := [key for key in leaf_keys(fresh) if as_tuple(key)[-1] == "_reset"]:
            self._row("result of a reset", "no '_reset'", f"a reset left {left} in what it returned: take it out")
        if self._watch:
            self._judge_entries(fresh.select(*held, strict=False), [self.env.observation_spec], ())
        self._judge_start(fresh, driver.done_keys)
        for key, value in then.items() if self._unjudgeable is None else ():
            others = ~driver.of_entry(marked, key, value)
            if not same_values(fresh.get(key)[others], value[others]):
                text = f"the reset of marked elements after {self._when} changed {key_str(key)} of others"
                self._row(_PARTIAL, _MARKED, text)
        return fresh

    # ---- verdicts on a reset and a step

    def _judge_start(self, td: TensorDictBase, flags: list[NestedKey]) -> None:
        over = [key_str(key) for key in flags if bool(td.get(key).any())]
        text = f"a reset returned {', '.join(over)} true: an episode cannot begin at its end" if over else None
        self._row("start of an episode", "no done flag", text, good="not done", bad="done")

    def _judge_step(self, td: TensorDictBase, before: TensorDictBase, stepped: Any) -> None:
        env, outcome = self.env, stepped.get("next", None)
        if stepped is not td or outcome is None:
            text = "step must return its input, with the outcome under 'next'"
            self._row("result of a step", "its input, with 'next'", text)
        key = different_key(before, stepped.exclude("next"))
        text = None if key is None else f"{self._when} changed {key_str(key)} of its input"
        self._row("input of a step", "kept", text, good="kept", bad="changed")
        self._judge_entries(outcome, [env.observation_spec, env.full_reward_spec, env.full_done_spec], ("next",))

    def _judge_entries(self, entries: Any, specs: list[Composite], prefix: tuple[str, ...]) -> None:
        wanted = {key: spec[key] for spec in specs for key in leaf_keys(spec)}
        faults = entry_faults(entries, specs, self.env)
        for key in dict.fromkeys((*wanted, *faults)):
            value, spec, fault = entries.get(key, None), wanted.get(key), faults.get(key)
            if fault is None and key in self.driver.reward_keys and not bool(value.isfinite().all()):
                fault = f"expected numbers, got {value[~value.isfinite()][0].item()}"
            got, expected = ("nothing" if one is None else describe_entry(one) for one in (value, spec))
            text = None if fault is None else f"{fault} (at {self._when})"
            self._row(key_str(unwrap((*prefix, *as_tuple(key)))), expected, text, good=got, bad=got)
            if spec is not None and fault is not None:
                self._fits &= isinstance(value, Tensor) and value.shape == spec.shape
        flags = [key for key in leaf_keys(self.env.full_done_spec) if key in wanted]
        if not faults.keys().isdisjoint(flags):
            raise _FlagsError
        for level in done_levels(flags):
            done, *ends = (entries.get(key) for key in (unwrap((*level, flag)) for flag in FLAGS) if key in flags)
            name = "done flags" if not level else f"done flags of {'.'.join(level)}"
            agree = torch.equal(done, torch.stack(ends).any(0))
            text = None if agree else f"done is not terminated | truncated at {self._when}"
            self._row(name, "done = terminated | truncated", text)

    # ---- verdicts on runs

    @property
    def _unjudgeable(self) -> str | None:
        """Why episodes cannot be told apart, if they cannot."""
        if not self.driver.one_level:
            return "the done flags are in several groups, and not at the root"
        return None if self._fits else "entries do not have the shapes of the specs"

    def _judge_last_observations(self) -> None:
        """Report last observations that always equal the first ones of the next episodes: they are no last ones."""
        name, expected, driver = "last observation of an episode", "under 'next'", self.driver
        if self._unjudgeable is not None:
            self._skip(name, expected, self._unjudgeable)
            return
        ends = kept = 0
        moved = False
        for step in self.run:
            over = driver.per_episode(step.outcome.get(driver.done_keys[0])).cpu()
            alike = torch.ones_like(over)
            for key in driver.observation_keys:
                value = step.outcome.get(key)
                own = isinstance(value, Tensor) and driver.of_entry(over.unsqueeze(-1), key, value).shape == over.shape
                if own:
                    moved |= not same_values(step.root.get(key), value)
                    alike &= same_rows(value, step.following.get(key), over.ndim)
            ends, kept = ends + int(over.sum()), kept + int((over & ~alike).sum())
        if kept or (ends > 1 and moved):
            text = "at every end 'next' holds the first observation of the following episode: the last one is lost"
            self._row(name, expected, None if kept else text, bad="lost")
        else:
            why = f"no end in {self.steps} random steps; pass `steps=`, or shorter episodes"
            self._skip(name, expected, "at every end it equals that of the reset" if ends else why)

    def _judge_seeded_runs(self) -> None:
        why = self._unjudgeable or ("fewer than three steps" if self.steps < 3 else None)
        several = self.env.batch_size.numel() > 1
        if why is not None:
            self._skip(_PARTIAL, _MARKED, why) if several else None
            return
        plain, other = self.walk(_PARTIAL, resets=0), self.walk(_PARTIAL, resets=0, later=self.steps)
        if self.error is None:
            self._judge_inner_reset(plain, other)
        reset = self.walk(_PARTIAL, resets=1) if several else []
        if reset and self.error is None:
            self._judge_partial_reset(plain, reset)

    def _judge_inner_reset(self, plain: list[EnvStep], other: list[EnvStep]) -> None:
        """Report a last observation that depends on the seed where no other step of an episode does."""
        over = [self.driver.over(step.outcome) for step in plain]
        for left, right, last in zip(plain, other, over, strict=False):
            keys = [key for key in self.driver.observation_keys if isinstance(left.outcome.get(key), Tensor)]
            same = all(same_values(left.outcome.get(key), right.outcome.get(key)) for key in keys)
            if last and not same:
                text = "at an end 'next' is drawn as a reset draws, although no step is: the last one is lost"
                self._row("last observation of an episode", "under 'next'", text, bad="drawn")
            if last or not same:
                return

    def _judge_partial_reset(self, plain: list[EnvStep], reset: list[EnvStep]) -> None:
        changed = self._differences(plain, reset)
        if changed and self._drawn(plain, reset, changed):
            self._skip(_PARTIAL, _MARKED, "steps draw random numbers, and the reset changes which ones")
            return
        text = f"after a reset of element 0, {key_str(changed[0])} of another element is different" if changed else None
        runs = (reset if count == 1 else self.walk(_PARTIAL, resets=count) for count in (1, 2, 3))
        if text is None and all(self._unmoved(plain, run) for run in runs):  # once, a start may be there by chance
            text = "element 0 was marked in '_reset' and not reset"
        self._row(_PARTIAL, _MARKED, text)

    def _differences(self, one: list[EnvStep], two: list[EnvStep]) -> list[NestedKey]:
        """Return the keys in which another element than the first differs before it ends, in the order of time."""
        found: list[NestedKey] = []
        ndim, alive = len(self.env.batch_size), self._others()
        for left, right in zip(one[2:], two[2:], strict=False):
            for key in leaf_keys(left.outcome):
                same = same_rows(left.outcome.get(key), right.outcome.get(key, None), ndim)
                if not bool((same | ~alive).all()):
                    found.append(key)
            alive &= ~self.driver.per_element(left.outcome.get(self.driver.done_keys[0])).cpu()
        return list(dict.fromkeys(found))

    def _drawn(self, plain: list[EnvStep], reset: list[EnvStep], changed: list[NestedKey]) -> bool:
        """Whether what changed depends on random numbers: of steps, in an order that a reset shifts.

        Elements may share a generator. What a careless reset does does not depend on the number of resets, and what
        steps draw depends on the seed, although they begin alike: a seed may count from the next full reset on.
        """
        if not any(self._differences(reset, self.walk(_PARTIAL, resets=count)) for count in (2, 3)):
            return False
        over = [self.driver.over(step.outcome) for step in plain]
        count = over.index(True) + 1 if any(over) else len(over)  # the starts that follow are drawn, too
        drawn: set[NestedKey] = set()
        for first in (self.steps, 0):
            other = self.walk(_PARTIAL, resets=0, first=first, later=self.steps)
            if other and different_key(plain[0].root, other[0].root) is None:
                drawn |= set(self._differences(plain[:count], other[:count]))
        return drawn.issuperset(changed)

    def _unmoved(self, plain: list[EnvStep], reset: list[EnvStep]) -> bool:
        """Whether the first element is after its reset where it was, although that is not where it started."""
        index = (0,) * len(self.env.batch_size)
        start, place, now = plain[0].root[index], plain[1].following[index], reset[2].root[index]
        keys = [key for key in self.driver.observation_keys if isinstance(plain[0].root.get(key), Tensor)]
        began = bool(self.driver.per_element(plain[1].outcome.get(self.driver.done_keys[0]))[index])  # as a reset would
        moved = not began and any(not same_values(start.get(key), place.get(key)) for key in keys)
        return moved and all(same_values(place.get(key), now.get(key)) for key in keys)
