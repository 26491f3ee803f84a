"""The rules of a Markov decision process on TensorDicts: the next root, done flags, partial resets.

A *level* is where done flags stand: ``()`` for the root, ``("agents",)`` for flags under ``agents``. Each level has
up to three flags, ``done = terminated | truncated``, and a mask ``_reset`` of the same shape beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_non_tensor
from tensordict.nn import InteractionType as ExplorationType
from tensordict.nn import set_interaction_type as set_exploration_type
from tensordict.nn.probabilistic import interaction_type as exploration_type  # not in `nn` of tensordict 0.14
from torch import Tensor

from rl.core.errors import ContractError, ShapeError, SpecError
from rl.core.keys import (
    ACTION,
    DONE,
    NEXT,
    RESET,
    REWARD,
    TERMINATED,
    TRUNCATED,
    NestedKey,
    as_tuple,
    key_str,
    leaf_keys,
    unwrap,
)

if TYPE_CHECKING:
    from rl.core.interfaces import Env, Leaves

__all__ = [
    "FLAGS",
    "ExplorationType",
    "StepMDP",
    "complete_done",
    "done_levels",
    "exploration_type",
    "merge_reset",
    "reset_masks",
    "set_exploration_type",
    "step_mdp",
    "where_reset",
]


FLAGS = (DONE, TERMINATED, TRUNCATED)
"""The flags of one level."""

Keys = NestedKey | Iterable[NestedKey]
Level = tuple[str, ...]


def key_list(keys: Keys) -> list[NestedKey]:
    """One key or several, as a list; a tuple of strings is one key."""
    if isinstance(keys, str) or (isinstance(keys, tuple) and keys and all(isinstance(k, str) for k in keys)):
        return [keys]  # pyright: ignore[reportReturnType]  # checked
    return list(keys)  # pyright: ignore[reportReturnType]  # a collection of keys


def done_levels(done_keys: Keys) -> list[Level]:
    """Where flags stand, outermost first.

    Example:
        >>> done_levels(["done", "terminated", ("agents", "done")])
        [(), ('agents',)]
    """
    return sorted({as_tuple(key)[:-1] for key in key_list(done_keys)}, key=lambda level: (len(level), level))


def _flag(td: Any, key: NestedKey, shape: Sequence[int] | None, owner: str) -> Tensor | None:
    """Return a flag as bool of the right shape; None if it is absent."""
    value = td.get(key, None)
    if value is None:
        return None
    if value.dtype is not torch.bool:
        odd = value[(value != 0) & (value != 1)]
        if odd.numel():
            got = f"{odd.flatten()[0].item()} ({value.dtype})"
            raise SpecError(f"{owner} wrote the flag {key_str(key)} as {got}, expected true or false")
        value = value.bool()
    if shape is not None and value.shape != torch.Size(shape):
        if value.numel() != torch.Size(shape).numel():
            raise ShapeError(f"flag {key_str(key)} must have shape {tuple(shape)}, got {tuple(value.shape)}")
        value = value.reshape(torch.Size(shape))
    return value


def complete_done(
    tensordict: Any,
    *,
    level: Level = (),
    flags: Iterable[str] = FLAGS,
    shape: Sequence[int] | None = None,
    owner: str = "the environment",
) -> Any:
    """Fill in the flags of one level, in place, and reject flags that contradict ``done = terminated | truncated``.

    With ``terminated`` (and perhaps ``truncated``) alone, ``done`` is either; with ``done`` alone, it counts as
    ``terminated``; with ``truncated`` alone, ``done`` is the same and nothing is terminated; a missing ``truncated``
    is what is done but not terminated. Without any flag all are false.

    Args:
        tensordict: TensorDict, or leaves by flat key.
        level: Level of the flags.
        flags: Flags that are there in the end.
        shape: Shape of a flag, ``[*B, 1]``; flags of another shape are reshaped; that of the flags found if None.
        owner: Component that wrote the flags, for messages.

    Raises:
        ContractError: If ``done`` and ``truncated`` are there without ``terminated``: it is not known which ends are
            terminal. Also if ``done`` is not ``terminated | truncated``.
        ShapeError: If a flag does not fit `shape`, or there is no flag and no shape.
        SpecError: If a flag has a value other than 0 and 1.

    Example:
        >>> from tensordict import TensorDict
        >>> td = complete_done(TensorDict(terminated=torch.tensor([True])))
        >>> td["done"], td["truncated"]
        (tensor([True]), tensor([False]))
    """
    names: list[NestedKey] = [unwrap((*level, flag)) for flag in FLAGS]
    done, terminated, truncated = (_flag(tensordict, name, shape, owner) for name in names)
    if done is not None and truncated is not None and terminated is None:
        raise ContractError(
            f"flags {key_str(names[0])} and {key_str(names[2])} came without {key_str(names[1])}:"
            " say which ends are terminal"
        )
    if terminated is None:
        terminated = _terminated(tensordict, done, truncated, names, shape)
    if done is None:
        done = terminated.clone() if truncated is None else terminated | truncated
    else:
        _reject_contradiction(done, terminated, truncated, level, owner)
    if truncated is None:
        truncated = done & ~terminated
    wanted = set(flags)
    for flag, name, value in zip(FLAGS, names, (done, terminated, truncated), strict=True):
        if flag in wanted and tensordict.get(name, None) is not value:
            tensordict[name] = value
    return tensordict


def _terminated(
    td: Any, done: Tensor | None, truncated: Tensor | None, names: Sequence[NestedKey], shape: Sequence[int] | None
) -> Tensor:
    """Return the flag ``terminated`` where it is absent."""
    if done is not None:
        return done.clone()
    if truncated is not None:
        return torch.zeros_like(truncated)
    if shape is not None:
        return torch.zeros(torch.Size(shape), dtype=torch.bool, device=getattr(td, "device", None))
    raise ShapeError(f"no flag among {[key_str(name) for name in names]}, and no shape to make one of")


def _reject_contradiction(done: Tensor, terminated: Tensor, truncated: Tensor | None, level: Level, owner: str) -> None:
    wrong = terminated & ~done if truncated is None else done ^ (terminated | truncated)
    if not bool(wrong.any()):
        return
    found = dict(zip(FLAGS, (done, terminated, truncated), strict=True))
    at = wrong.nonzero()[0].tolist()
    said = ", ".join(
        f"{key_str(unwrap((*level, name)))} {bool(flag[tuple(at)])}" for name, flag in found.items() if flag is not None
    )
    raise ContractError(
        f"{owner} wrote done flags that contradict each other, at {at} of {list(done.shape)}: {said}."
        " Write done = terminated | truncated, or leave 'done' out to have it filled in"
    )


def reset_masks(tensordict: Any, done_keys: Keys = DONE) -> dict[Level, Tensor]:
    """Return the masks ``_reset`` by level. A mask at the root overrides those below; without one, all is reset."""
    root = tensordict.get(RESET, None)
    if root is not None:
        return {(): root}
    found = {level: tensordict.get(unwrap((*level, RESET)), None) for level in done_levels(done_keys)}
    return {level: mask for level, mask in found.items() if mask is not None}


def where_reset(mask: Tensor, fresh: Any, current: Any) -> Any:
    """`fresh` where the mask is set, else `current`.

    Args:
        mask: Bool ``[*B, 1]``.
        fresh: ``[*B, ...]``, a tensor or non-tensor data.
        current: Same shape.

    Raises:
        ShapeError: If the shapes do not agree.
    """
    mask = mask.squeeze(-1)
    if fresh.shape != current.shape or fresh.shape[: mask.ndim] != mask.shape:
        raise ShapeError(
            f"a partial reset with a mask of shape {(*mask.shape, 1)} meets fresh data of shape {tuple(fresh.shape)}"
            f" and current data of shape {tuple(current.shape)}"
        )
    if isinstance(fresh, Tensor):
        return torch.where(mask.reshape(mask.shape + (1,) * (fresh.ndim - mask.ndim)), fresh, current)
    if not mask.ndim:
        return (fresh if bool(mask) else current).clone()
    rows = [where_reset(m.unsqueeze(-1), f, c) for m, f, c in zip(mask, fresh, current, strict=True)]
    return torch.stack(rows)


def merge_reset(current: Mapping[Any, Any], fresh: Mapping[Any, Any], masks: Mapping[Level, Tensor]) -> dict[Any, Any]:
    """Fresh leaves where masks are set, current ones elsewhere: what a partial reset returns, on leaves.

    Args:
        current: Leaves by flat key, with the data of all that is not reset.
        fresh: Leaves by flat key, as a full reset returns them.
        masks: Masks by level, from `reset_masks`; an entry obeys the mask of the innermost level that holds it.

    Raises:
        ContractError: If an entry is absent in `current` though not everything is reset.
    """
    # A mask on a CUDA device is not read, which would wait for all work before it: `where_reset` is right for any mask.
    partial = {level: mask for level, mask in masks.items() if mask.is_cuda or not bool(mask.all())}
    out: dict[Any, Any] = {}
    for key, value in fresh.items():
        path = as_tuple(key)
        # The innermost level that holds the entry: that of the longest prefix of its key.
        levels = [level for level in masks if path[: len(level)] == level and len(path) > len(level)]
        level = max(levels, key=len, default=None)
        if level not in partial:
            out[key] = value
            continue
        old = current.get(key, None)
        if old is None and partial[level].is_cuda and bool(partial[level].all()):
            out[key] = value
            continue
        if old is None:
            raise ContractError(
                f"a partial reset reads {key_str(key)} of what is not reset, which is not in the input"
                f" (keys: {list(current.keys())}); pass the data of the last step along with '_reset'"
            )
        out[key] = where_reset(partial[level], value, old)
    return out


_Tree = dict[str, Any]  # keys to leave out: None for the entire entry, or a tree of the keys below it
_NOTHING: _Tree = {}


def _tree(keys: Iterable[NestedKey]) -> _Tree:
    tree: _Tree = {}
    for key in keys:
        *path, last = as_tuple(key)
        node: _Tree | None = tree
        for part in path:
            node = node.setdefault(part, {}) if node is not None else None
        if node is not None:
            node[last] = None
    return tree


# ---------------------------------------------------------------------- the following root


def _put(entries: dict[str, Any], source: TensorDictBase, drop: _Tree) -> None:
    """Lay what `source` holds, without `drop`, over `entries`."""
    for key, value in source.items():
        below = drop.get(key, _NOTHING)
        if below is None:
            continue
        if is_non_tensor(value):
            entries[key] = value.clone()
        elif isinstance(value, TensorDictBase):
            nested = _nested(entries.get(key), value, below)
            if below is _NOTHING or not nested.is_empty() or value.is_empty():  # all of it was left out
                entries[key] = nested
        else:
            entries[key] = value


def _nested(under: Any, value: TensorDictBase, drop: _Tree) -> TensorDictBase:
    if isinstance(value, LazyStackedTensorDict):
        parts = value.unbind(value.stack_dim)
        unders = under.unbind(value.stack_dim) if isinstance(under, TensorDictBase) else [None] * len(parts)
        pairs = zip(unders, parts, strict=True)
        return LazyStackedTensorDict.lazy_stack([_nested(u, part, drop) for u, part in pairs], value.stack_dim)
    entries: dict[str, Any] = {}
    if isinstance(under, TensorDictBase):
        _put(entries, under, _NOTHING)
    _put(entries, value, drop)
    return TensorDict(entries, batch_size=value.batch_size, device=value.device)


class StepMDP:
    """`step_mdp` with its key lists created once.

    The following root holds the root entries of this step, over them those of ``next``. Left out are ``next`` itself,
    masks ``_reset``, rewards, and what the arguments say; an entry that is absent is not missed. Tensors are shared
    with the input, non-tensor entries are copied.

    Args:
        reward_keys: Keys of rewards, left out if `exclude_reward`, but for those that are in `state_keys`.
        done_keys: Keys of done flags, left out if `exclude_done`; their levels say where masks ``_reset`` stand.
        action_keys: Keys of actions, left out of the root if `exclude_action`.
        state_keys: Keys that the environment reads besides actions, which are never left out.
        keep_other: Whether to keep root entries that ``next`` does not have, such as what the policy wrote.
        exclude_reward: Whether to leave out `reward_keys`.
        exclude_done: Whether to leave out `done_keys`.
        exclude_action: Whether to leave out `action_keys`.

    Example:
        >>> step = StepMDP()
        >>> import torch
        >>> td = TensorDict(observation=torch.zeros(1), action=torch.ones(1), next={"observation": torch.ones(1)})
        >>> root = step(td)
        >>> root["observation"], root["action"]
        (tensor([1.]), tensor([1.]))
    """

    def __init__(
        self,
        *,
        reward_keys: Keys = REWARD,
        done_keys: Keys = DONE,
        action_keys: Keys = ACTION,
        state_keys: Keys = (),
        keep_other: bool = True,
        exclude_reward: bool = True,
        exclude_done: bool = False,
        exclude_action: bool = False,
    ) -> None:
        state = {unwrap(key) for key in key_list(state_keys)}
        rewards = [unwrap(key) for key in key_list(reward_keys)]
        dones = [unwrap(key) for key in key_list(done_keys)]
        self._actions = [unwrap(key) for key in key_list(action_keys)]
        masks = [unwrap((*level, RESET)) for level in done_levels(dones)]
        dropped = [key for key in rewards if key not in state] if exclude_reward else []
        dropped += dones if exclude_done else []
        self._next_keys: frozenset[NestedKey] = frozenset([*dropped, *masks])
        excluded = [key for key in self._actions if key not in state] if exclude_action else []
        self._root_keys: frozenset[NestedKey] = frozenset([*self._next_keys, *excluded, NEXT])
        self._next_drop, self._root_drop = _tree(self._next_keys), _tree(self._root_keys)
        self._keep_other = keep_other
        self._keep_action = not keep_other and not exclude_action

    @classmethod
    def from_env(cls, env: Env, *, state_keys: Keys = (), keep_other: bool = True) -> StepMDP:
        """Return the stepper of an environment, from the keys of its specs; actions stay."""
        return cls(
            reward_keys=leaf_keys(env.full_reward_spec),
            done_keys=leaf_keys(env.full_done_spec),
            action_keys=leaf_keys(env.full_action_spec),
            state_keys=state_keys,
            keep_other=keep_other,
        )

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the root of the following step, from a step with ``next``; `tensordict` is left as it is.

        Raises:
            ContractError: If there is no ``next``.
        """
        if isinstance(tensordict, LazyStackedTensorDict):
            parts = [self(part) for part in tensordict.unbind(tensordict.stack_dim)]
            return LazyStackedTensorDict.lazy_stack(parts, tensordict.stack_dim)
        following = tensordict.get(NEXT, None)
        if following is None:
            raise ContractError(f"step_mdp reads 'next', which is not there (keys: {list(tensordict.keys())})")
        entries: dict[str, Any] = {}
        if self._keep_other:
            _put(entries, tensordict, self._root_drop)
        elif self._keep_action:
            _put(entries, tensordict.select(*self._actions, strict=False), _NOTHING)
        _put(entries, following, self._next_drop)
        names: Any = tensordict.names if tensordict._has_names() else None  # noqa: SLF001  else `names` costs more than the step
        return TensorDict(entries, batch_size=tensordict.batch_size, device=tensordict.device, names=names)

    def leaves(self, root: Leaves, following: Leaves) -> Leaves:
        """Return the same on leaves: root entries, and what the step wrote, keyed without ``next``."""
        out = {}
        if self._keep_other:
            out = {key: value for key, value in root.items() if key not in self._root_keys}
        elif self._keep_action:
            out = {key: root[key] for key in self._actions if key in root}
        out.update((key, value) for key, value in following.items() if key not in self._next_keys)
        return out


def step_mdp(
    tensordict: TensorDictBase,
    next_tensordict: TensorDictBase | None = None,
    *,
    keep_other: bool = True,
    exclude_reward: bool = True,
    exclude_done: bool = False,
    exclude_action: bool = True,
    reward_keys: Keys = REWARD,
    done_keys: Keys = DONE,
    action_keys: Keys = ACTION,
) -> TensorDictBase:
    """Return the root of the following step: the root entries of this one, and over them those of ``next``.

    `StepMDP` does the same many times at less cost.

    Args:
        tensordict: Step, with ``next``; left as it is.
        next_tensordict: TensorDict that is updated with the result and returned; None for a new one.
        keep_other: Whether to keep root entries that ``next`` does not have, such as what the policy wrote.
        exclude_reward: Whether to leave out rewards.
        exclude_done: Whether to leave out the flags under `done_keys`.
        exclude_action: Whether to leave out actions.
        reward_keys: One or several.
        done_keys: One or several.
        action_keys: One or several.

    Raises:
        ContractError: If there is no ``next``.

    Example:
        >>> import torch
        >>> td = TensorDict(observation=torch.zeros(1), action=torch.ones(1), next={"observation": torch.ones(1)})
        >>> sorted(step_mdp(td).keys())
        ['observation']
    """
    stepper = StepMDP(
        reward_keys=reward_keys,
        done_keys=done_keys,
        action_keys=action_keys,
        keep_other=keep_other,
        exclude_reward=exclude_reward,
        exclude_done=exclude_done,
        exclude_action=exclude_action,
    )
    out = stepper(tensordict)
    return out if next_tensordict is None else next_tensordict.update(out)
