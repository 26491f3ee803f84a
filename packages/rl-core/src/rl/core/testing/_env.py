"""Whether an environment keeps what its specs and the protocol promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.interfaces import Env, Leaves
from rl.core.keys import NestedKey, as_tuple, key_str, nearest, unwrap
from rl.core.mdp import StepMDP, done_levels
from rl.core.specs import Composite

__all__ = ["check_env", "check_env_specs", "same_values"]

_FLAGS = ("done", "terminated", "truncated")
_MEMBERS = sorted(name for name in {*vars(Env), *Env.__annotations__} if not name.startswith("_"))


def check_env(make_env: Callable[[], Env], *, seed: int = 0, steps: int = 200) -> None:
    """Check an environment: specs, flags, last observations, partial resets, seeds, and its leaf form.

    Args:
        make_env: makes the environment; called several times. What it makes is an `rl.core.interfaces.Env`, it need
            not inherit from anything.
        seed: for `set_seed`.
        steps: at most so many random steps are made to see an episode end; without an end what happens there goes
            unchecked.

    Raises:
        AssertionError: with a sentence that says what is wrong.

    Example:
        >>> from rl.core.testing import CountingEnv
        >>> check_env(lambda: CountingEnv(length=3, batch_size=(2,)))
    """
    env = make_env()
    who = type(env).__name__
    try:
        _check_protocol(env, who)
        check_env_specs(env, seed=seed)
    finally:
        env.close()
    with _Run(make_env, seed, steps) as run:
        run.check_steps()
    with _Run(make_env, seed, steps) as run:
        run.check_seed(make_env)
    with _Run(make_env, seed, steps) as run:
        run.check_partial_reset()
    _check_leaf_form(make_env, seed, steps)
    try:
        env.close()
    except Exception as error:
        raise AssertionError(f"{who}.close(), called a second time, raised {type(error).__name__}: {error}") from error


@foreign_arguments(
    needless={
        "return_contiguous": ("needless: results are compared as they come", None),
        "check_dtype": ("needless: dtypes always have to agree", True),
        "tensordict": ("not available yet: use a reset without arguments", None),
        "break_when_any_done": ("needless: what is done is reset", None),
    }
)
def check_env_specs(env: Env, *, seed: int | None = None, steps: int = 3) -> None:
    """Compare a reset and a few random steps with the specs, entry by entry.

    Args:
        env: any environment of the protocol; left within an episode.
        seed: for `set_seed`; not called if None.
        steps: how many.

    Raises:
        AssertionError: one line for each entry that differs: key, expected, got.

    Example:
        >>> from rl.core.testing import CountingEnv
        >>> check_env_specs(CountingEnv())
    """
    who = type(env).__name__
    if seed is not None:
        env.set_seed(seed)
    td = env.reset()
    _compare(td, [env.observation_spec, env.full_done_spec], f"{who}.reset()", env)
    _check_flags(td, env, f"{who}.reset()")
    for _ in range(steps):
        td.update(env.full_action_spec.rand())
        stepped, td = env.step_and_maybe_reset(td)
        outcome = stepped.get("next")
        _compare(
            outcome, [env.observation_spec, env.full_reward_spec, env.full_done_spec], f"{who}.step()['next']", env
        )
        _check_flags(outcome, env, f"{who}.step()['next']")


# ---------------------------------------------------------------------- entries


def _keys(entries: Any) -> list[NestedKey]:
    if isinstance(entries, TensorDictBase):
        return [unwrap(key) for key in entries.keys(include_nested=True, leaves_only=True)]
    return list(entries)


def _spec_keys(spec: Composite) -> list[NestedKey]:
    return [unwrap(key) for key in spec.keys(include_nested=True, leaves_only=True)]


def _describe(value: Any) -> str:
    if isinstance(value, Tensor) or hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__


def _compare(entries: Any, specs: Iterable[Composite], what: str, env: Env) -> None:
    """Assert that entries are what the specs say, with one line for each that is not."""
    wanted = {key: spec[key] for spec in specs for key in _spec_keys(spec)}
    found = _keys(entries)
    lines: list[str] = []
    for key, spec in wanted.items():
        if key not in found:
            close = nearest(key, [other for other in found if other not in wanted])
            hint = f" (is {key_str(close)} it?)" if close is not None else ""
            lines.append(f"  {key_str(key)}: expected {_describe(spec)}, got nothing{hint}")
            continue
        value = entries.get(key)
        fault = spec._fault(value, torch.Size(())) if isinstance(value, Tensor) else None  # noqa: SLF001  ours
        if fault is not None:
            lines.append(f"  {key_str(key)}: expected {fault.expected}, got {fault.got}")
    known = {*wanted, *_spec_keys(env.full_action_spec)}
    state = getattr(env, "full_state_spec", None)
    known |= set() if state is None else set(_spec_keys(state))
    extra = [key for key in found if key not in known and as_tuple(key)[0] != "next"]
    lines += [f"  {key_str(key)}: expected nothing, got {_describe(entries.get(key))}" for key in extra]
    assert not lines, f"{what} does not agree with the specs:\n" + "\n".join(lines)


def _check_flags(entries: Any, env: Env, what: str) -> None:
    """Assert that ``done = terminated | truncated`` at every level."""
    keys = _spec_keys(env.full_done_spec)
    for level in done_levels(keys):
        names = [unwrap((*level, flag)) for flag in _FLAGS]
        assert names[0] in keys, f"the done spec has no {key_str(names[0])} (keys: {keys})"
        assert names[1] in keys, f"the done spec has no {key_str(names[1])} (keys: {keys})"
        either = entries.get(names[1])
        truncated = entries.get(names[2], None)
        either = either if truncated is None else either | truncated
        same = torch.equal(entries.get(names[0]), either)
        assert same, f"{what}: {key_str(names[0])} is not the union of terminated and truncated"


def same_values(left: Any, right: Any) -> bool:
    """Whether two entries agree bit by bit."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left.shape == right.shape and left.dtype == right.dtype and bool(_equal(left, right).all())
    return bool(left == right) if not hasattr(left, "batch_size") else left.tolist() == right.tolist()


def _equal(left: Tensor, right: Tensor) -> Tensor:
    """Elementwise, with NaN equal to NaN."""
    if not left.is_floating_point():
        return left == right
    return (left == right) | (left.isnan() & right.isnan())


def _assert_same(left: Any, right: Any, sentence: str) -> None:
    """Assert that two sets of entries agree bit by bit."""
    one, two = set(_keys(left)), set(_keys(right))
    assert one == two, f"{sentence}: the entries {sorted(map(str, one ^ two))} are in one of them only"
    for key in one:
        assert same_values(left.get(key), right.get(key)), f"{sentence}: {key_str(key)} differs"


# ---------------------------------------------------------------------- episodes


def _check_protocol(env: Any, who: str) -> None:
    missing = [name for name in _MEMBERS if not hasattr(env, name)]
    assert not missing, f"{who} is no rl.core.interfaces.Env; it lacks {missing}"
    for role in ("observation_spec", "full_action_spec", "full_reward_spec", "full_done_spec"):
        spec = getattr(env, role)
        assert isinstance(spec, Composite), f"{who}.{role} must be a Composite, got {type(spec).__name__}"
        assert spec.shape == env.batch_size, (
            f"{who}.{role} has shape {tuple(spec.shape)}; specs that an environment hands out carry its batch"
            f" {tuple(env.batch_size)}"
        )
    td = env.reset().update(env.full_action_spec.rand())
    stepped = env.step(td)
    assert stepped is td, f"{who}.step must return its input, with the outcome under 'next'"
    assert td.get("next", None) is not None, f"{who}.step wrote nothing under 'next' (keys: {list(td.keys())})"


class _Run:
    """An environment, and actions that are the same in every run."""

    def __init__(self, make_env: Callable[[], Env], seed: int, steps: int) -> None:
        self.env = make_env()
        self.who = type(self.env).__name__
        self.seed, self.steps = seed, steps
        self.generator = torch.Generator().manual_seed(seed)
        self.advance = StepMDP(
            reward_keys=_spec_keys(self.env.full_reward_spec),
            done_keys=_spec_keys(self.env.full_done_spec),
            action_keys=_spec_keys(self.env.full_action_spec),
        )
        state = getattr(self.env, "full_state_spec", None)
        self.state_keys = [] if state is None else _spec_keys(state)
        self.done_keys = [unwrap((*level, "done")) for level in done_levels(_spec_keys(self.env.full_done_spec))]

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.env.close()

    def act(self) -> TensorDict:
        return self.env.full_action_spec.rand(generator=self.generator)

    def over(self, entries: Any) -> bool:
        return any(bool(entries.get(key).any()) for key in self.done_keys)

    def ask_reset(self, root: TensorDictBase) -> TensorDictBase:
        for key in self.done_keys:
            root.set(unwrap((*as_tuple(key)[:-1], "_reset")), root.get(key).clone())
        return root

    def check_steps(self) -> None:
        """Steps write under ``next`` alone, and a reset leaves what the last step wrote."""
        env, who = self.env, self.who
        returned = env.set_seed(self.seed)
        assert isinstance(returned, int), f"{who}.set_seed must return the next seed, got {type(returned).__name__}"
        td = env.reset()
        assert not self.over(td), f"{who}.reset() returned done flags that are true"
        ends = 0
        for _ in range(self.steps):
            td.update(self.act())
            before = td.exclude("next").clone()
            stepped = env.step(td)
            assert stepped is td, f"{who}.step must return its input, with the outcome under 'next'"
            _assert_same(stepped.exclude("next"), before, f"{who}.step changed root entries")
            _check_flags(stepped.get("next"), env, f"{who}.step()['next']")
            outcome = stepped.get("next").clone()
            root = self.advance(stepped)
            if self.over(outcome):
                ends += 1
                fresh = env.reset(self.ask_reset(root))
                _assert_same(
                    stepped.get("next"),
                    outcome,
                    f"{who}.reset overwrote what the last step wrote under 'next': the last observation is lost",
                )
                self._check_fresh(fresh, outcome)
                root = fresh
            td = root
            if ends >= 3:
                break

    def _check_fresh(self, fresh: TensorDictBase, outcome: TensorDictBase) -> None:
        """After a partial reset no flag is set, and what was not reset is what it was."""
        assert not self.over(fresh), f"{self.who}.reset: a done flag of an element that was reset is still true"
        left = [key for key in _keys(fresh) if as_tuple(key)[-1] == "_reset"]
        assert not left, f"{self.who}.reset left {left} in its input: it must be taken out"
        if len(self.done_keys) == 1 and self.done_keys[0] == "done":
            over = outcome.get("done").flatten(len(self.env.batch_size)).any(-1)
            for key in _spec_keys(self.env.observation_spec):
                now, then = fresh.get(key), outcome.get(key)
                assert same_values(now[~over], then[~over]), (
                    f"{self.who}.reset of finished elements changed {key_str(key)} of others"
                )

    def check_seed(self, make_env: Callable[[], Env]) -> None:
        """Two environments of one seed, given the same actions, do the same; each way of stepping does."""
        twin = make_env()
        try:
            self.env.set_seed(self.seed)
            twin.set_seed(self.seed)
            one, two = self.env.reset(), twin.reset()
            _assert_same(one, two, f"two {self.who} of seed {self.seed} start differently")
            for _ in range(min(self.steps, 30)):
                action = self.act()
                stepped = twin.step(two.update(action.clone()))
                done, one = self.env.step_and_maybe_reset(one.update(action))
                _assert_same(
                    done.get("next"),
                    stepped.get("next"),
                    f"{self.who}: step and step_and_maybe_reset of one seed and one course differ",
                )
                two = self.advance(stepped)
                two = twin.reset(self.ask_reset(two)) if self.over(stepped.get("next")) else two
                written = _spec_keys(self.env.observation_spec)
                rewards = [key for key in _spec_keys(self.env.full_reward_spec) if key in _keys(one)]
                rewards = [key for key in rewards if key not in written and key not in self.state_keys]
                assert not rewards, (
                    f"{self.who}.step_and_maybe_reset left {rewards} in the root of the following step; a reward stands"
                    " under 'next' alone"
                )
                _assert_same(
                    one.select(*written), two.select(*written), f"{self.who}: the root of the following step differs"
                )
        finally:
            twin.close()

    def check_partial_reset(self) -> None:
        """A reset of the first element leaves the others alone."""
        env = self.env
        if env.batch_size.numel() < 2 or self.done_keys != ["done"]:
            return
        env.set_seed(self.seed)
        td = env.reset()
        for _ in range(2):
            _, td = env.step_and_maybe_reset(td.update(self.act()))
        mask = torch.zeros_like(td.get("done"))
        mask.view(-1)[0] = True
        held = {key: td.get(key) for key in _spec_keys(env.observation_spec)}
        before = {key: value.clone() for key, value in held.items()}
        fresh = env.reset(td.set("_reset", mask))
        others = ~mask.flatten(len(env.batch_size)).any(-1)
        for key, value in before.items():
            assert same_values(held[key], value), (
                f"{self.who}.reset of one element wrote into a tensor of its input, {key_str(key)}"
            )
            kept = same_values(fresh.get(key)[others], value[others])
            assert kept, f"{self.who}.reset of one element changed {key_str(key)} of the others"
        assert not self.over(fresh), f"{self.who}.reset of one element returned done flags that are true"


# ---------------------------------------------------------------------- the leaf form


def _check_leaf_form(make_env: Callable[[], Env], seed: int, steps: int) -> None:
    """The leaf form gives the numbers of the TensorDict form, in tensors of its own."""
    env, generic = make_env(), make_env()
    who = type(env).__name__
    try:
        lower = getattr(env, "lowered", None)
        leaf = lower() if lower is not None else None
        if leaf is None:
            return
        assert leaf.batch_size == env.batch_size, f"the leaf form of {who} has another batch size"
        generator = torch.Generator().manual_seed(seed)
        env.set_seed(seed)
        generic.set_seed(seed)
        advance = StepMDP(
            reward_keys=_spec_keys(env.full_reward_spec),
            done_keys=_spec_keys(env.full_done_spec),
            action_keys=_spec_keys(env.full_action_spec),
        )
        root: Leaves = leaf.reset_leaves()
        td = generic.reset()
        _assert_same(td, root, f"{who}: reset and reset_leaves differ")
        kept: list[Leaves] = [root]
        plain = all(isinstance(key, str) for key in _spec_keys(env.full_done_spec))
        for _ in range(min(steps, 30)):
            action = env.full_action_spec.rand(generator=generator)
            root = {**root, **{key: action.get(key) for key in _spec_keys(env.full_action_spec)}}
            outcome = leaf.step_leaves(root)
            _check_own(outcome, kept, who)
            kept.append(outcome)
            stepped, td = generic.step_and_maybe_reset(td.update(action))
            _assert_same(stepped.get("next"), outcome, f"{who}: step and step_leaves differ")
            root = advance.leaves(root, outcome)
            if plain and bool(outcome["done"].any()):
                root = leaf.reset_leaves(root, outcome["done"])
                kept.append(root)
            elif not plain and any(bool(outcome[key].any()) for key in _spec_keys(env.full_done_spec)):
                return  # a mask at the root cannot say which of several levels has ended
            for key in _spec_keys(env.observation_spec):
                assert same_values(td.get(key), root[key]), (
                    f"{who}: after step and reset_leaves, {key_str(key)} differs"
                )
    finally:
        env.close()
        generic.close()


def _check_own(outcome: Leaves, kept: list[Leaves], who: str) -> None:
    """Assert that no tensor shares memory with another one that was handed out."""
    seen = {_place(value): key for leaves in kept for key, value in leaves.items() if value.numel()}
    for key, value in outcome.items():
        if not value.numel():
            continue
        other = seen.get(_place(value))
        assert other is None, (
            f"{who}.step_leaves: {key_str(key)} shares its memory with {key_str(other) if other else other}, handed out"
            " before or beside it; every tensor must be new"
        )
        seen[_place(value)] = key


def _place(value: Tensor) -> int:
    return value.data_ptr()
