"""`check_env`: what an environment writes, key by key, and all of its faults at once."""

# ruff: noqa: T201  # it prints

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.env_specs import group_faults
from rl.core.errors import RLError, SpecError
from rl.core.interfaces import Env
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.mdp import done_levels
from rl.core.specs import Composite
from rl.envs.base._checks import entry_fault, expected_entry
from rl.envs.base._leaf import as_env
from rl.envs.base._specs import FLAGS, leaf_keys

_LIMIT = 46
"""Characters of a column."""


def check_env(env: Env, *, seed: int = 0, steps: int = 200) -> None:
    """Check an environment, print what it writes key by key, and raise one error with all faults.

    The specs of a group must have the number of agents of its reward (`rl.core.env_specs.group_faults`). Random steps
    are compared with the specs: keys, shapes, dtypes, devices, bounds, NaN. Further rows say whether the done flags
    agree, an episode begins without a done flag, the last observation of an episode is kept, one seed gives one
    trajectory, inputs stay as they are, and a partial reset (``_reset``) leaves the other elements alone. What could
    not be judged is said too. The environment is left in the middle of an episode. `rl.testing.check_env` checks more,
    given a function that makes environments.

    Args:
        env: Any environment of the `rl.core.interfaces.Env` protocol.
        seed: Seed for `set_seed`.
        steps: Number of random steps.

    Raises:
        SpecError: With one line for each fault.

    Example:
        >>> from rl.envs import CartPoleEnv
        >>> check_env(CartPoleEnv(batch_size=[2]), steps=50)
        CartPoleEnv, batch [2], 50 random steps
        key         | expected ...
    """
    steps = as_integer(steps, "check_env", "steps", 1)
    checked: Any = as_env(env)
    debug, checked.debug = checked.debug, False
    table = _Table(checked)
    state = torch.get_rng_state()
    try:
        torch.manual_seed(seed)
        _Checks(checked, table, seed, steps).run()
    finally:
        checked.debug = debug
        torch.set_rng_state(state)
    table.show(f"{checked._rl.owner}, batch {list(checked.batch_size)}, {steps} random steps")  # noqa: SLF001  # its name
    if table.faults:
        listed = "\n".join(f"  {fault}" for fault in table.faults)
        raise SpecError(f"{checked._rl.owner} has {_count(len(table.faults))}:\n{listed}")  # noqa: SLF001


def _count(faults: int) -> str:
    return "1 fault" if faults == 1 else f"{faults} faults"


class _Table:
    """Rows by name: expected, got, verdict."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._rows: dict[str, tuple[str, str, str]] = {}
        self.faults: list[str] = []

    def row(self, name: str, expected: str, got: str, fault: str | None = None) -> None:
        """Add a row; a fault stays, and the first one counts."""
        if self._rows.get(name, ("", "", "ok"))[2] != "ok":
            return
        self._rows[name] = (expected, got, "ok" if fault is None else "FAULT")
        if fault is not None:
            self.faults.append(f"{name}: {fault}")

    def skip(self, name: str, why: str) -> None:
        """Add a row that could not be judged."""
        self._rows.setdefault(name, ("", why, "not judged"))

    def entries(self, entries: Any, specs: list[Composite], prefix: tuple[str, ...], step: int) -> None:
        """Compare what was written with the specs."""
        wanted = {key: spec[key] for spec in specs for key in leaf_keys(spec)}
        when = "at the reset" if not prefix else f"at step {step}"
        for key, spec in wanted.items():
            value = entries.get(key, None)
            name, expected = key_str(unwrap((*prefix, *as_tuple(key)))), expected_entry(spec)
            got = "nothing" if value is None else expected_entry(value)
            fault = "it is missing" if value is None else entry_fault(spec, value)
            if fault is None and isinstance(value, Tensor) and value.is_floating_point() and bool(value.isnan().any()):
                fault = "it has NaN"
            self.row(name, expected, got, None if fault is None else f"{fault} ({when})")
        for key in leaf_keys(entries):
            if key not in wanted and as_tuple(key)[-1] not in ("_reset", "_step") and key not in self._env.state_keys:
                name = key_str(unwrap((*prefix, *as_tuple(key))))
                self.row(name, "nothing", expected_entry(entries.get(key)), f"no spec has this entry ({when})")

    def show(self, title: str) -> None:
        """Print the table."""
        rows = [("key", "expected", "got", "verdict"), *((name, *row) for name, row in self._rows.items())]
        widths = [min(_LIMIT, max(len(row[column]) for row in rows)) for column in range(4)]
        print(title)
        for row in rows:
            cells = [cell if len(cell) <= _LIMIT else f"{cell[: _LIMIT - 3]}..." for cell in row]
            print(" | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


class _Checks:
    """The runs from which the rows come."""

    def __init__(self, env: Any, table: _Table, seed: int, steps: int) -> None:
        self.env, self.table, self.seed, self.steps = env, table, seed, steps
        self.levels = done_levels(env.done_keys)
        single = () if () in self.levels else self.levels[0] if len(self.levels) == 1 else None
        self.level: tuple[str, ...] | None = single  # of the flags that end episodes; None if several groups do
        self.transform = vars(env).get("transform")
        self.state = None if self.transform is None else copy.deepcopy(self.transform.state_dict())
        self.seeded = True

    def run(self) -> None:
        """Fill the table."""
        self._judge_groups()
        try:
            self.env.set_seed(self.seed)
        except RLError as error:
            self.seeded = False
            self.table.row("same seed", "one trajectory", "no seed", str(error))
        first = self._walk("reset and steps", watch=True)
        if first is None:
            return
        self._judge_last_observations(first)
        if not self.seeded:
            return
        again = self._walk("same seed", first[1])
        if again is not None:
            self._compare_runs(first[0], again[0])
        self._judge_partial_reset()

    # ---- a run

    def _walk(
        self,
        name: str,
        actions: list[TensorDict] | None = None,
        *,
        watch: bool = False,
        resets: int | None = None,
        seeds: int = 0,
    ) -> tuple[list[TensorDictBase], list[TensorDict]] | None:
        """Return steps from a seeded reset and their actions; None if one raised, which is a fault.

        Args:
            name: Row of that fault.
            actions: Random ones if None.
            watch: Whether to compare with the specs.
            resets: 1 to reset the first element after two steps; 0 for the same run without; None for neither.
            seeds: Number that is added to the seeds of these runs.
        """
        env, table = self.env, self.table
        found: list[TensorDictBase] = []
        played: list[TensorDict] = []
        step = 0
        try:
            if self.seeded:
                env.set_seed(self.seed)
            if self.transform is not None:  # running statistics begin again
                self.transform.load_state_dict(copy.deepcopy(self.state))
            self._trust()
            td = env.reset()
            if watch:
                table.entries(td, [env.observation_spec, env.full_done_spec], (), 0)
                self._judge_start(td)
            count = self.steps if actions is None else len(actions)
            for step in range(1, count + 1):
                action = env.full_action_spec.rand() if actions is None else actions[step - 1]
                played.append(action.clone())
                td.update(action.clone())
                before = td.clone()
                self._trust()
                stepped = env.step(td)
                if watch:
                    self._judge_step(before, stepped, step)
                root = env.step_mdp(stepped)
                outcome = stepped.get("next").clone()
                td = env.maybe_reset(root)
                found.append(TensorDict({"root": before, "next": outcome, "following": td.clone()}, env.batch_size))
                if step == 2 and resets:
                    env.set_seed(self.seed + 1)
                    td = self._reset_first(td)
                if step > 1 and resets is not None:
                    env.set_seed(self.seed + seeds + step)  # what follows is drawn alike, whatever resets have drawn
        except Exception as error:  # noqa: BLE001  # whatever it is, it goes into the table
            text = f"{type(error).__name__}: {error}"
            where = "the reset" if step == 0 else f"step {step}"
            table.row(name, "no error", type(error).__name__, f"{where} raised {text}")
            return None
        return found, played

    def _trust(self) -> None:
        """Keep the environment's own comparison with its specs, which stops at the first fault, out of the way."""
        rules = self.env._rl  # noqa: SLF001  # the parts of an environment share its rules
        rules.reset_checked = rules.step_checked = True

    # ---- verdicts

    def _judge_groups(self) -> None:
        for key, fault in group_faults(self.env).items():
            self.table.row(f"spec of {key_str(key)}", "as many agents as its reward", "another shape", fault)

    def _judge_start(self, td: TensorDictBase) -> None:
        over = [key_str(key) for key in self.env.done_keys if bool(td.get(key).any())]
        fault = f"a reset returned {', '.join(over)} true: an episode cannot begin at its end" if over else None
        self.table.row("start of an episode", "no done flag", "done" if over else "not done", fault)

    def _judge_step(self, before: TensorDictBase, stepped: TensorDictBase, step: int) -> None:
        env, table, outcome = self.env, self.table, stepped.get("next")
        specs = [env.observation_spec, env.full_reward_spec, env.full_done_spec]
        table.entries(outcome, specs, ("next",), step)
        changed = [key for key in leaf_keys(before) if not _same(before.get(key), stepped.get(key, None))]
        fault = f"step {step} changed {', '.join(map(key_str, changed))} of its input" if changed else None
        table.row("input of a step", "kept", "changed" if changed else "kept", fault)
        for level in self.levels:
            flags = [outcome.get(unwrap((*level, flag)), None) for flag in FLAGS]
            if flags[0] is None or flags[1] is None:
                continue
            ends = [flag for flag in flags[1:] if flag is not None]
            alike = len({flag.shape for flag in (flags[0], *ends)}) == 1
            agree = alike and bool((flags[0] == torch.stack(ends).any(0)).all())
            name = "done flags" if not level else f"done flags of {'.'.join(level)}"
            fault = None if agree else f"done is not terminated | truncated at step {step}"
            table.row(name, "done = terminated | truncated", "so" if agree else "otherwise", fault)

    def _compare_runs(self, one: list[TensorDictBase], two: list[TensorDictBase]) -> None:
        fault = None
        for step, (left, right) in enumerate(zip(one, two, strict=True), 1):
            odd = [key for key in leaf_keys(left) if not _same(left.get(key), right.get(key, None))]
            if odd:
                fault = f"two runs with the same seed and actions differ in {key_str(odd[0])} at step {step}"
                break
        self.table.row("same seed", "one trajectory", "so" if fault is None else "two trajectories", fault)

    def _judge_last_observations(self, run: tuple[list[TensorDictBase], list[TensorDict]]) -> None:
        """Report last observations that always equal the first ones of the next episodes: they are no last ones."""
        name, expected = "last observation of an episode", "under 'next'"
        if self.level is None:
            self.table.skip(name, "done flags in several groups")
            return
        ends = kept = 0
        moved = False
        keys = self._comparable(run[0])
        if not keys:
            self.table.skip(name, "no flags and observations of the spec's shape")
            return
        for step in run[0]:
            over = self._ended(step.get("next"))
            root, outcome, following = step.get("root"), step.get("next"), step.get("following")
            moved |= any(not _same(root.get(key), outcome.get(key)) for key in keys)
            if bool(over.any()):
                same = torch.stack([_same_rows(outcome.get(key), following.get(key), over.ndim) for key in keys]).all(0)
                ends, kept = ends + int(over.sum()), kept + int((over & ~same).sum())
        if kept:
            self.table.row(name, expected, "so")
        elif ends > 1 and moved:
            fault = "at every end 'next' holds the first observation of the following episode: the last one is lost"
            self.table.row(name, expected, "lost", fault)
        else:
            self.table.skip(name, f"{ends} ends in {self.steps} steps")

    def _comparable(self, steps: list[TensorDictBase]) -> list[NestedKey]:
        """Observations beside the flags that end episodes; none unless both have the shapes of their specs."""
        level, done, seen = self.level or (), self._key("done"), self.env.observation_spec
        flags = self.env.full_done_spec[done].shape
        episodes = flags[:-1] if level else self.env.batch_size
        if not _has_shape(steps, done, flags):
            return []
        return [
            key
            for key in self.env.observation_keys
            if as_tuple(key)[: len(level)] == level
            and seen[key].shape[: len(episodes)] == episodes
            and _has_shape(steps, key, seen[key].shape)
        ]

    def _judge_partial_reset(self) -> None:
        name, expected = "partial reset", "of marked elements only"
        if self.env.batch_size.numel() < 2 or self.level is None:
            self.table.skip(name, "done flags in several groups" if self.level is None else "one element")
            return
        plain = self._walk(name, resets=0)
        reset = None if plain is None else self._walk(name, plain[1], resets=1)
        if plain is None or reset is None:
            return
        changed = self._differences(plain[0], reset[0])
        if changed and not self._changed_at_reset(plain[0], reset[0]):
            drawn = self._drawn(name, *plain)
            changed = [key for key in changed if key not in drawn]
            if not changed:
                self.table.skip(name, "steps draw random numbers")
                return
        fault = f"after a reset of element 0, {changed[0]} of another element is different" if changed else None
        if fault is None and len(plain[0]) > 2 and self._unmoved(plain[0][1], reset[0][2]):
            fault = "element 0 was marked in '_reset' and not reset"
        self.table.row(name, expected, "so" if fault is None else "otherwise", fault)

    def _drawn(self, name: str, plain: list[TensorDictBase], actions: list[TensorDict]) -> list[str]:
        """Return the keys that differ with the seed before any episode ends: elements may share a generator."""
        other = self._walk(name, actions, resets=0, seeds=self.steps)
        over = [bool(self._ended(step.get("next")).any()) for step in plain]
        count = over.index(True) + 1 if any(over) else len(over)
        return [] if other is None else self._differences(plain[:count], other[0][:count])

    def _changed_at_reset(self, one: list[TensorDictBase], two: list[TensorDictBase]) -> bool:
        """Whether the reset after two steps changed an observation of another element."""
        ndim = len(self.env.batch_size)
        a, b = (run[2].get("root") if len(run) > 2 else None for run in (one, two))
        if a is None or b is None:
            return False
        pairs = [(a.get(key), b.get(key, None)) for key in self.env.observation_keys]
        return any(isinstance(x, Tensor) and not bool(_same_rows(x, y, ndim).flatten()[1:].all()) for x, y in pairs)

    def _reset_first(self, td: TensorDictBase) -> TensorDictBase:
        mask = torch.zeros_like(td.get(self._key("done")))
        mask.view(self.env.batch_size.numel(), -1)[0] = True
        return self.env.reset(td.set(self._key("_reset"), mask))

    def _key(self, name: str) -> NestedKey:
        """Return a key next to the flags that end episodes."""
        return unwrap((*(self.level or ()), name))

    def _ended(self, outcome: TensorDictBase) -> Tensor:
        """Which episodes ended, ``[*B]``; for flags of a group ``[*B, n]``."""
        done = outcome.get(self._key("done"))
        return done.any(-1) if self.level else done.flatten(len(self.env.batch_size)).any(-1)

    def _differences(self, one: list[TensorDictBase], two: list[TensorDictBase]) -> list[str]:
        """Return the keys in which another element than the first differs before it ends, in the order of time."""
        found: list[str] = []
        ndim = len(self.env.batch_size)
        alive = torch.ones(self.env.batch_size, dtype=torch.bool)
        alive.view(-1)[0] = False
        for left, right in zip(one, two, strict=True):
            a, b = left.get("next"), right.get("next")
            for key in leaf_keys(a):
                value, other = a.get(key), b.get(key, None)
                if isinstance(value, Tensor) and not bool((_same_rows(value, other, ndim) | ~alive).all()):
                    found.append(key_str(key))
            alive = alive & ~a.get(self._key("done")).flatten(ndim).any(-1).cpu()
        return list(dict.fromkeys(found))

    def _unmoved(self, before: TensorDictBase, after: TensorDictBase) -> bool:
        """Whether the first element begins its next step where it was, although it had moved."""
        index = (0,) * len(self.env.batch_size)
        start, place, now = before.get("root")[index], before.get("following")[index], after.get("root")[index]
        keys = self.env.observation_keys
        moved = any(not _same(start.get(key), place.get(key)) for key in keys)
        return moved and all(_same(place.get(key), now.get(key)) for key in keys)


def _has_shape(steps: list[TensorDictBase], key: NestedKey, shape: torch.Size) -> bool:
    """Whether an entry is a tensor of `shape` after each step, and in the root that follows."""
    values = [step.get(part).get(key, None) for step in steps for part in ("next", "following")]
    return all(isinstance(value, Tensor) and value.shape == shape for value in values)


def _same(left: Any, right: Any) -> bool:
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return type(left) is type(right) and (not isinstance(left, Mapping) or left == right)
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return bool(_same_rows(left, right, left.ndim).all())


def _same_rows(left: Tensor, right: Any, ndim: int) -> Tensor:
    """Which elements are equal, ``[*B]``; NaN equals NaN. None are if the shapes differ."""
    if not isinstance(right, Tensor) or left.shape != right.shape:
        return torch.zeros(left.shape[:ndim], dtype=torch.bool)
    same = left == right
    if left.is_floating_point():
        same |= left.isnan() & right.isnan()
    return (same.flatten(ndim).all(-1) if same.ndim > ndim else same).cpu()
