"""Rollout of a policy in an environment, on tensors by key where possible, else on TensorDicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from torch import Tensor

from rl.core import set_recurrent_mode
from rl.core.errors import ContractError, RLError, ShapeError, SpecError
from rl.core.interfaces import LeafEnv, Leaves
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.recurrent import keep_modes
from rl.core.specs import Composite, TensorSpec, set_group_sizes
from rl.core.tensor_functions import TensorFunction, as_function
from rl.envs.base._checks import check_entries
from rl.envs.base._specs import leaf_keys


class RandomPolicy:
    """Policy that samples each action from its spec; reads nothing.

    Args:
        action_spec: Spec of the actions, with the batch, such as ``env.full_action_spec``.
        action_key: Key of the action, if the spec is that of one action.

    Example:
        >>> from rl.envs import PendulumEnv
        >>> env = PendulumEnv()
        >>> env.rollout(3, policy=RandomPolicy(env.action_spec))["action"].shape
        torch.Size([3, 1])
    """

    in_keys: list[NestedKey]
    out_keys: list[NestedKey]

    def __init__(self, action_spec: TensorSpec, action_key: NestedKey = "action") -> None:
        if not isinstance(action_spec, Composite):
            action_spec = Composite({action_key: action_spec})
        self.action_spec = action_spec
        self.in_keys = []
        self.out_keys = leaf_keys(action_spec)

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.update(self.action_spec.rand())

    def lowered(self) -> TensorFunction:
        """Return the function of no leaves to the actions, in the order of `out_keys`."""
        specs = [self.action_spec[key] for key in self.out_keys]
        return TensorFunction(lambda: tuple([spec.rand() for spec in specs]), self.in_keys, self.out_keys)


# ruff: noqa: SLF001  # the parts of an environment share its rules, which users do not see


_AHEAD = 1 << 14
"""Numbers of random actions that are drawn at once."""


def rollout(
    env: Any,
    start: TensorDictBase,
    max_steps: int,
    policy: Callable[[TensorDictBase], TensorDictBase] | None,
    callback: Callable[[Any, TensorDictBase], Any] | None,
    *,
    stop: str,
    contiguous: bool,
    set_truncated: bool,
    storing_device: torch.device | str | int | None = None,
) -> TensorDictBase:
    """Run the steps of `EnvBase.rollout`, after the first reset.

    An environment with a leaf form and a policy with a lowered form run on tensors by key, and become one TensorDict
    at the end; all others run on TensorDicts.

    Args:
        env: The environment.
        start: The root entries of the first step; left as they are.
        max_steps: Maximum number of steps, at least 1.
        policy: None for random actions.
        callback: Function that is called after each step.
        stop: Rule for ended episodes: ``any`` stops, ``all`` stops when all have, ``never`` resets.
        contiguous: Whether to stack into tensors.
        set_truncated: Whether to mark the last step.
        storing_device: Device of the result; that of the entries if None.

    Returns:
        ``[*B, T]``, the last dimension named ``time``.
    """
    with keep_modes():
        if contiguous and callback is None and storing_device is None and stop != "all":
            leaf = env.lowered() if () in env._rl.flags.levels else None
            if leaf is not None:
                root: Leaves = {key: start.get(key) for key in leaf_keys(start)}
                if policy is not None:
                    act: Any = as_function(policy)
                else:
                    act, first = _drawn_ahead(env.full_action_spec, max_steps)
                    played = _play(env, root, first, max_steps, stop=stop, set_truncated=set_truncated)
                    if played is not None:
                        return played
                missing = act is None or any(key not in root for key in act.in_keys)
                if not missing:  # else the other path says what is missing
                    return _leaf_rollout(env, leaf, root, max_steps, act, stop=stop, set_truncated=set_truncated)
        steps = _steps(env, start, max_steps, policy, callback, stop=stop, device=storing_device)
        if set_truncated:
            last = steps[-1].copy()
            steps[-1] = last.set("next", _truncate(env, last.get("next").copy()))
        return _stack(env, steps, contiguous=contiguous)


def _steps(
    env: Any, start: TensorDictBase, max_steps: int, policy: Any, callback: Any, *, stop: str, device: Any
) -> list[TensorDictBase]:
    """Return the steps of a rollout on TensorDicts."""
    steps: list[TensorDictBase] = []

    td = start.copy()
    for count in range(1, max_steps + 1):
        td = _act(env, policy, td)
        if stop == "never" and count < max_steps:
            td, following = env.step_and_maybe_reset(td)
        else:
            td, following = env.step(td), None
        td.pop("_step", None)
        steps.append(td if device is None else td.to(device))
        if callback is not None:
            callback(env, td)
        if count == max_steps:
            break
        if following is None:
            over = _over(env, td)
            if (over.numel() and bool(over.all())) or (stop == "any" and bool(over.any())):
                break
            following = env.step_mdp(td)
            if stop == "all" and bool(over.any()):
                following.set("_step", ~over)
        td = following
    return steps


def _leaf_rollout(
    env: Any, leaf: LeafEnv, root: Leaves, max_steps: int, policy: Any, *, stop: str, set_truncated: bool
) -> TensorDictBase:
    act, reads = getattr(policy, "fn", policy), policy.in_keys
    writes = [(key[0] == "next" and isinstance(key, tuple), key) for key in policy.out_keys]
    writes = [(below, unwrap(key[1:]) if below else key) for below, key in writes]
    dropped = [*env.reward_keys, *env.action_keys]
    single = env.batch_size.numel() == 1 and env.full_done_spec["done"].shape.numel() == 1
    roots: list[Leaves] = []
    nexts: list[Leaves] = []
    with set_recurrent_mode(False):  # whatever holds outside: these are single steps
        for count in range(1, max_steps + 1):
            extra: Leaves = {}
            for (below, key), value in zip(writes, act(*[root[key] for key in reads]), strict=True):
                (extra if below else root)[key] = value
            outcome = leaf.step_leaves(root)
            roots.append(root)
            nexts.append({**extra, **outcome} if extra else outcome)
            over = bool(outcome["done"] if single else outcome["done"].any())
            if count == max_steps or (over and stop == "any"):
                break
            root = {**root, **nexts[-1]}
            for key in dropped:
                root.pop(key, None)
            if over:
                root = {**root, **leaf.reset_leaves(root, outcome["done"])}
    if set_truncated:
        nexts[-1] = _truncate(env, nexts[-1].copy())
    return _assemble(env, roots, nexts)


def _play(
    env: Any, root: Leaves, actions: Leaves, max_steps: int, *, stop: str, set_truncated: bool
) -> TensorDictBase | None:
    """Run all actions in one call, with the results of `_leaf_rollout`; None if that is not possible."""
    rules, play = env._rl, getattr(type(env), "_play_leaves", None)  # of a `LeafEnvBase`
    checked = rules.reset_checked and rules.step_checked and not env.debug
    if play is None or not checked or env.batch_size or {*root} != {*env.observation_keys, *env.done_keys}:
        return None
    if not actions or any(len(leaf) != max_steps for leaf in actions.values()):
        return None
    rules.check_open()
    found = play(env, root, actions, stop=stop == "any")
    if found is None:
        return None
    roots, nexts = found
    count = len(nexts["done"])
    if set_truncated:
        for key, last in _truncate(env, {key: leaf[-1] for key, leaf in nexts.items()}).items():
            nexts[key][-1] = last
    roots |= {key: leaf if count == max_steps else leaf[:count].clone() for key, leaf in actions.items()}
    return _as_tensordict(env, roots, nexts, count)


def _drawn_ahead(spec: Composite, steps: int) -> tuple[TensorFunction, Leaves]:
    """Random actions, drawn for many steps at once unless a mask may change between them, and those of the first steps.

    The second are empty if a mask may change.
    """
    keys = leaf_keys(spec)
    if any(getattr(spec[key], "mask", None) is not None for key in keys):
        return RandomPolicy(spec).lowered(), {}
    ahead = max(1, min(steps, _AHEAD // max(1, sum(spec[key].shape.numel() for key in keys))))
    first = {key: spec[key].rand((ahead,)) for key in keys}
    blocks = [first]
    drawn: Iterator[tuple[Tensor, ...]] = iter(())

    def draw() -> tuple[Tensor, ...]:
        nonlocal drawn
        for one in drawn:
            return one
        block = blocks.pop() if blocks else {key: spec[key].rand((ahead,)) for key in keys}
        drawn = zip(*[leaf.unbind(0) for leaf in block.values()], strict=True)
        return next(drawn)

    return TensorFunction(draw, [], keys), first


def _assemble(env: Any, roots: list[Leaves], nexts: list[Leaves]) -> TensorDictBase:
    dim = len(env.batch_size)
    _check_same_keys([root.keys() for root in roots])
    _check_same_keys([outcome.keys() for outcome in nexts])
    try:
        columns: Any = {key: torch.stack([row[key] for row in roots], dim) for key in roots[0]}
        below: Any = {key: torch.stack([row[key] for row in nexts], dim) for key in nexts[0]}
    except Exception:
        _explain_outcomes(env, nexts)
        raise
    _check_same_dtypes(env, below, nexts)
    return _as_tensordict(env, columns, below, len(roots))


def _as_tensordict(env: Any, columns: Leaves, below: Leaves, steps: int) -> TensorDictBase:
    """Return a rollout from its root entries and those under ``next``, ``[*B, steps, ...]``."""
    dim = len(env.batch_size)
    env._rl.flags.check(below, env._rl.owner)
    names: Any = [*[None] * dim, "time"]
    size = (*env.batch_size, steps)
    both: Any = (columns, below)
    parts = [TensorDict(entries, size, names=names, device=env.device) for entries in both]
    for part in parts:
        set_group_sizes(part, env._rl.groups, dim)
    return parts[0].set("next", parts[1])


def on_its_device(policy: Any, device: torch.device | None) -> Callable[[TensorDictBase], TensorDictBase]:
    """Return `policy` with its input on the device of its first parameter or buffer, and its output on `device`."""
    tensors = [*getattr(policy, "parameters", tuple)(), *getattr(policy, "buffers", tuple)()]
    home = device or torch.device("cpu")
    if not tensors or tensors[0].device == home:
        return policy
    return lambda td: policy(td.to(tensors[0].device)).to(home)


def write_into(out: TensorDictBase, found: TensorDictBase) -> TensorDictBase:
    """Copy a rollout into the first steps of `out`, and return the view of them.

    Raises:
        ShapeError: If `out` has another batch or too few steps.
        ContractError: If it has other entries.
    """
    steps = found.batch_size[-1]
    if out.batch_size[:-1] != found.batch_size[:-1] or not out.batch_size or out.batch_size[-1] < steps:
        raise ShapeError(
            f"rollout(out=...): the rollout is {list(found.batch_size)}, and out is {list(out.batch_size)}: it needs"
            " the same batch and at least as many steps"
        )
    odd = sorted(set(leaf_keys(out)) ^ set(leaf_keys(found)), key=str)
    if odd:
        raise ContractError(
            f"rollout(out=...): out and the rollout do not have the same entries ({', '.join(map(key_str, odd))} are in"
            " one of them): create it from an earlier rollout with torch.empty_like"
        )
    return out[..., :steps].update_(found)


def _act(env: Any, policy: Any, td: TensorDictBase) -> TensorDictBase:
    if policy is None:
        return env.rand_action(td)
    with set_recurrent_mode(False):  # whatever holds outside: this is a single step
        try:
            out = policy(td)
        except (TypeError, AttributeError) as error:
            if not isinstance(policy, torch.nn.Module) or hasattr(policy, "in_keys"):
                raise
            raise SpecError(
                f"the policy {type(policy).__name__} failed on a TensorDict ({type(error).__name__}): wrap a"
                " plain network as TensorDictModule(network, in_keys=['observation'], out_keys=['action'])"
            ) from error
    if out is td:
        return td
    if not isinstance(out, TensorDictBase):
        raise SpecError(
            f"the policy {type(policy).__name__} returned {type(out).__name__}, expected a TensorDict: wrap a plain"
            " network as TensorDictModule(network, in_keys=['observation'], out_keys=['action'])"
        )
    return td.update(out)  # a policy may return its own entries alone


def _over(env: Any, td: TensorDictBase) -> Tensor:
    """Which elements are done, ``[*B]``: by the flag at the root, or else those of which every part is done."""
    if env._rl.members:
        return torch.stack([_over(one, part) for one, part in zip(env._rl.members, td.unbind(0), strict=True)])
    ndim, keys = len(env.batch_size), env._rl.flags.done_keys
    flags = [td.get(("next", *as_tuple(key))).flatten(ndim).all(-1) for key in (["done"] if "done" in keys else keys)]
    return flags[0] if len(flags) == 1 else torch.stack(flags).all(0)


def _truncate(env: Any, outcome: Any) -> Any:
    """Set the truncated and done flags of a step, in place."""
    keys = [key for key in env.done_keys if as_tuple(key)[-1] == "truncated"]
    if not keys:
        raise RLError(
            f"rollout(set_truncated=True): {type(env).__name__} has no 'truncated' flag (done keys: {env.done_keys});"
            " add one with env.add_truncated_keys(), or append StepCounter(max_steps=...)"
        )
    for key in keys:
        over = torch.ones_like(outcome[key])
        outcome[key] = over
        outcome[unwrap((*as_tuple(key)[:-1], "done"))] = over.clone()
    return outcome


def _stack(env: Any, steps: list[TensorDictBase], *, contiguous: bool) -> TensorDictBase:
    dim = len(env.batch_size)
    if env._rl.members:
        columns = zip(*[step.unbind(0) for step in steps], strict=True)
        each = zip(env._rl.members, columns, strict=True)
        return LazyStackedTensorDict.lazy_stack([_stack(one, [*part], contiguous=contiguous) for one, part in each])
    if contiguous:
        _check_same_keys([set(leaf_keys(step)) for step in steps])
        try:
            out: Any = torch.stack(steps, dim)  # pyright: ignore[reportArgumentType]  # torch knows tensors only
        except Exception:
            _explain_outcomes(env, [step.get("next") for step in steps])
            raise
        _check_same_dtypes(env, out.get("next"), [step.get("next") for step in steps])
    else:
        out = LazyStackedTensorDict.lazy_stack(steps, dim)
    env._rl.flags.check(out.get("next"), env._rl.owner)
    out.names = [*[None] * dim, "time"]
    return out


def _check_same_keys(steps: Sequence[AbstractSet[NestedKey]]) -> None:
    for number, keys in enumerate(steps):
        if keys != steps[0]:
            odd = ", ".join(key_str(key) for key in sorted(steps[0] ^ keys, key=str))
            raise ContractError(
                f"rollout: step {number} has other entries than step 0 ({odd}); write them"
                " from the first step on, for example a reset that puts a start value (of a recurrent policy: the"
                " transform policy.make_tensordict_primer())"
            )


def _check_same_dtypes(env: Any, stacked: Any, outcomes: list[Any]) -> None:
    """Raise a SpecError if an entry has changed its dtype, which a stack would convert."""
    ends = outcomes[0], outcomes[-1]
    for key in leaf_keys(outcomes[0]):
        dtype = getattr(stacked.get(key), "dtype", None)
        if any(getattr(end.get(key), "dtype", None) is not dtype for end in ends):
            _explain_outcomes(env, outcomes)


def _explain_outcomes(env: Any, outcomes: list[Any]) -> None:
    """Raise a SpecError if an outcome does not agree with the specs."""
    for outcome in outcomes:
        specs = [env.observation_spec, env.full_reward_spec, env.full_done_spec]
        check_entries(outcome, specs, owner=f"{env._rl.owner}._step", allowed=leaf_keys(outcome))


# ruff: noqa: SLF001  # the parts of an environment share its rules, which users do not see


class OpenLoopPolicy:
    """Policy that plays given actions, one after the other.

    Args:
        env: The environment, for its action keys.
        actions: Actions ``[*B, T, ...]``, or a TensorDict ``[*B, T]``; or an iterable of the actions of single steps,
            ``[*B, ...]`` or TensorDicts ``[*B]``.
        max_steps: Number of actions that are read from an iterable.

    Raises:
        ShapeError: If the batch is not that of the environment.
        RLError: If they are neither, or an iterable of none.
    """

    def __init__(self, env: Any, actions: TensorDictBase | Tensor | Iterable[Any], max_steps: int) -> None:
        self.dim = len(env.batch_size)
        if not isinstance(actions, TensorDictBase | Tensor):
            actions = _stack_actions(actions, self.dim, max_steps, env)
        self.in_keys: list[NestedKey] = []
        rows: Any = actions if env._rl.members else ()
        self._members = [OpenLoopPolicy(one, row, max_steps) for one, row in zip(env._rl.members, rows, strict=True)]
        if self._members:
            self.steps = min(policy.steps for policy in self._members)
            return
        if isinstance(actions, TensorDictBase):
            self.out_keys: list[NestedKey] = list(env.action_keys)
            columns: list[Any] = [actions.get(key, None) for key in self.out_keys]
        else:
            self.out_keys, columns = [env.action_key], [actions]
        for key, column in zip(self.out_keys, columns, strict=True):
            spec = env.full_action_spec[key]
            wanted = [*spec.shape[: self.dim], "T", *spec.shape[self.dim :]]
            shape = None if column is None else [*column.shape[: self.dim], "T", *column.shape[self.dim + 1 :]]
            if column is None or column.ndim <= self.dim or shape != wanted:
                got = "nothing" if column is None else str(list(column.shape))
                raise ShapeError(
                    f"{env._rl.owner}.rollout(actions=...): {key_str(key)} must be {wanted} with T steps, got {got}"
                )
        self.steps = columns[0].shape[self.dim]
        self._rows = zip(*[column.unbind(self.dim) for column in columns], strict=True)

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self._members:
            parts = zip(self._members, tensordict.unbind(0), strict=True)
            return LazyStackedTensorDict.lazy_stack([policy(part) for policy, part in parts])
        return tensordict.update(dict(zip(self.out_keys, next(self._rows), strict=True)))

    def lowered(self) -> TensorFunction:
        """Return the function of no leaves to the actions."""
        return TensorFunction(lambda: next(self._rows), self.in_keys, self.out_keys)


def _stack_actions(actions: Any, dim: int, max_steps: int, env: Any) -> Any:
    """Return the actions of single steps, with the dimension of time behind the batch."""
    owner = f"{env._rl.owner}.rollout(actions=...)"
    steps = list(islice(actions, max_steps)) if isinstance(actions, Iterable) else []
    if not steps or not all(isinstance(one, TensorDictBase | Tensor) for one in steps):
        inside = type(steps[0]).__name__ if steps else "nothing"
        raise RLError(
            f"{owner} takes a tensor or TensorDict with all steps, or an iterable with one for each step, got"
            f" {type(actions).__name__} of {inside}: pass tensors"
        )
    try:
        return torch.stack(steps, dim)
    except (RuntimeError, IndexError) as error:
        shapes = sorted({str(list(one.shape)) for one in steps})
        raise ShapeError(f"{owner}: actions of single steps differ or lack the batch, they are {shapes}") from error
