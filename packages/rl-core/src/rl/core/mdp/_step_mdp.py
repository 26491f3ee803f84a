"""`step_mdp`: the root of the following step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_non_tensor

from rl.core.errors import ContractError
from rl.core.keys import ACTION, DONE, NEXT, RESET, REWARD, NestedKey, as_tuple, leaf_keys, unwrap
from rl.core.mdp._done_flags import (
    FLAGS,
    Keys,
    complete_done,
    done_levels,
    key_list,
)
from rl.core.mdp._partial_reset import merge_reset, reset_masks, where_reset

if TYPE_CHECKING:
    from rl.core.interfaces import Env, Leaves

__all__ = [
    "FLAGS",
    "StepMDP",
    "complete_done",
    "done_levels",
    "merge_reset",
    "reset_masks",
    "step_mdp",
    "where_reset",
]

_Tree = dict[str, Any]  # what to leave out: the key itself (None), or a tree of what to leave out below it
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
    """`step_mdp` with its key lists made once.

    The following root holds the root entries of this step, over them those of ``next``. Left out are ``next`` itself,
    masks ``_reset``, rewards, and what the arguments say; an entry that is absent is not missed. Tensors are shared
    with the input, non-tensor entries are copied.

    Args:
        reward_keys: left out if `exclude_reward`, but for those that are in `state_keys`.
        done_keys: left out if `exclude_done`; their levels say where masks ``_reset`` stand.
        action_keys: left out of the root if `exclude_action`.
        state_keys: what the environment reads besides actions; it is never left out.
        keep_other: keep root entries that ``next`` does not have, such as what the policy wrote.
        exclude_reward: see `reward_keys`.
        exclude_done: see `done_keys`.
        exclude_action: see `action_keys`.

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
        """The stepper of an environment, from the keys of its specs; actions stay."""
        return cls(
            reward_keys=leaf_keys(env.full_reward_spec),
            done_keys=leaf_keys(env.full_done_spec),
            action_keys=leaf_keys(env.full_action_spec),
            state_keys=state_keys,
            keep_other=keep_other,
        )

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The root of the following step, from a step with ``next``; `tensordict` is left as it is.

        Raises:
            ContractError: if there is no ``next``.
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
        """The same on leaves: root entries, and what the step wrote, keyed without ``next``."""
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
    """The root of the following step: the root entries of this one, and over them those of ``next``.

    `StepMDP` does the same many times at less cost.

    Args:
        tensordict: a step, with ``next``; left as it is.
        next_tensordict: updated with the result and returned, if given.
        keep_other: keep root entries that ``next`` does not have, such as what the policy wrote.
        exclude_reward: leave rewards out.
        exclude_done: leave the flags under `done_keys` out.
        exclude_action: leave actions out.
        reward_keys: one or several.
        done_keys: one or several.
        action_keys: one or several.

    Raises:
        ContractError: if there is no ``next``.

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
