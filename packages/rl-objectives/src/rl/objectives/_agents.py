"""Masks of agents, and values of agents that wait or have left."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.contract import Contract, Key
from rl.core.errors import ShapeError
from rl.core.keys import DONE, NEXT, TERMINATED, NestedKey, as_tuple, key_str, next_key, unwrap
from rl.objectives._batch import fitted, leaf_of, mask_keys_of_steps, without_padding

AGENT_MASK = "mask"
"""Name that environments give the flags of the agents that act, in each group."""


def group_of(key: Any) -> tuple[str, ...]:
    """The group that a key is in: ``("agents",)`` for ``("agents", "action")``, ``()`` at the root.

    Example:
        >>> group_of(("agents", "action")), group_of("action"), group_of(["move", "turn"])
        (('agents',), (), ())
    """
    return () if isinstance(key, list) else as_tuple(key)[:-1]


def in_group(group: tuple[str, ...], name: str) -> NestedKey:
    """The key of an entry of a group."""
    return unwrap((*group, name))


def agent_mask_key(keys: Mapping[str, Any]) -> NestedKey | None:
    """Key of the flags of the agents that act, in the group of the action; None if the action is in none."""
    group = group_of(keys.get("action", ()) or "")
    return in_group(group, AGENT_MASK) if group else None


def mask_keys(keys: Mapping[str, Any], *, after: bool = False) -> tuple[Key, ...]:
    """The masks in a contract: of valid steps, and for a group of agents of those that act.

    Args:
        keys: of the loss.
        after: whether the mask under ``next`` is read too.
    """
    name, steps = agent_mask_key(keys), mask_keys_of_steps(keys["mask"])
    if name is None:
        return steps
    names = [name, next_key(name)] if after else [name]
    doc = "true for agents that act in the step, [*B, n_agents]"
    return (*steps, *(Key(one, (), doc, torch.bool, optional=True) for one in names))


def acting(td: TensorDictBase, keys: Mapping[str, Any], steps: Tensor | None, owner: str) -> Tensor | None:
    """The mask of agents that act in valid steps, ``[*B, n_agents]``; `steps` if the batch has no such flags.

    Args:
        td: the batch ``[*B]``.
        keys: of the loss.
        steps: the mask of valid steps, ``[*B]``.
        owner: the component that reads it, for messages.

    Raises:
        ShapeError: if the flags have another shape or dtype.
    """
    name = agent_mask_key(keys)
    mask: Tensor | None = None if name is None else td.get(name, None)
    if mask is None or name is None:
        return steps
    action: Tensor = td.get(keys["action"], mask)
    check_agent_mask(mask, name, action.shape[: td.ndim + 1], owner)
    return mask if steps is None else mask & fitted(steps, mask)


def check_agent_mask(mask: Tensor, name: NestedKey, shape: torch.Size, owner: str) -> None:
    """Raise unless `mask` is bool ``[*B, n_agents]``, which is `shape`.

    Raises:
        ShapeError: naming the entry.
    """
    if mask.dtype is not torch.bool or mask.shape != shape:
        raise ShapeError(
            f"{owner}: {key_str(name)} is {mask.dtype} {list(mask.shape)}, expected bool {list(shape)}, a flag of each"
            " agent: true for those that act. Rename the entry if it means something else"
        )


def bootstrapped(td: TensorDictBase, keys: Mapping[str, Any], now: Tensor, owner: str) -> Tensor:
    """Mask of agents whose next value is part of the return, ``[*B, n_agents]``; `now` without a mask under ``next``.

    They act next, or acted in the last step of a truncated episode. An agent that waits for its turn in that step
    counts too, if it has done flags of its own, which show that it has not left.

    Args:
        td: the batch ``[*B]``.
        keys: of the loss.
        now: the mask of agents that act.
        owner: the component that reads it, for messages.

    Raises:
        ShapeError: if the flags under ``next`` have another shape or dtype.
    """
    name = agent_mask_key(keys)
    later: Tensor | None = None if name is None else td.get(next_key(name), None)
    if later is None or name is None:
        return now
    check_agent_mask(later, next_key(name), now.shape, owner)

    def flag(key: NestedKey) -> Tensor | None:
        found = leaf_of(td, next_key(key))
        return found if found is None else found.bool().squeeze(-1) if found.ndim > now.ndim else found.bool()

    terminated = flag(keys.get("terminated", TERMINATED))
    if terminated is None:
        return later
    ends = [end for end in map(flag, {keys["done"], DONE}) if end is not None]
    there = remaining(td, keys)
    present = now if there is None else now | there
    return torch.stack([later, *[present & end & ~terminated for end in ends]]).any(0)


def remaining(td: TensorDictBase, keys: Mapping[str, Any]) -> Tensor | None:
    """Agents that have not left before the step, ``[*B, n_agents]``: those that act, or wait for their turn.

    None if done flags are not those of each agent: then it is unknown who has left.

    Args:
        td: the batch ``[*B]``.
        keys: of the loss, with an ``action`` in the group.
    """
    key = keys["done"]
    left: Tensor | None = td.get(key, None) if group_of(key) == group_of(keys["action"]) else None
    return None if left is None else ~left.bool().squeeze(-1)


def entry_of_team(td: TensorDictBase, key: NestedKey, keys: Mapping[str, Any]) -> Tensor | None:
    """An entry; of a reward or flag that the group lacks, the one that the whole team has at the root.

    Environments of a team write one reward and one pair of flags, ``[*B, 1]``, which count for each agent.

    Args:
        td: the batch ``[*B]``.
        key: Key of the entry.
        keys: Keys named ``reward``, ``done`` and ``terminated``.

    Example:
        >>> from tensordict import TensorDict
        >>> td = TensorDict(next=TensorDict(reward=torch.ones(1, 1)), batch_size=[1])
        >>> entry_of_team(td, ("next", "agents", "reward"), {"reward": ("agents", "reward")})
        tensor([[1.]])
    """
    found: Tensor | None = td.get(key, None)
    if found is not None or len(as_tuple(key)) < 3:
        return found
    shared = {next_key(keys[name]) for name in ("reward", "done", "terminated") if name in keys}
    return leaf_of(td, next_key(as_tuple(key)[-1])) if key in shared else None


def read_entries(contract: Contract, td: TensorDictBase, keys: Mapping[str, Any], owner: object) -> list[Tensor]:
    """What `Contract.read` returns, with rewards and flags of the team in place of those that a group lacks.

    Raises:
        ContractError: if a key is absent.
    """
    found: list[Tensor] = []
    for name in contract.in_keys:
        value = entry_of_team(td, name, keys)
        if value is None:
            contract.refuse(td, name, owner)
        found.append(value)
    return found


def without_idle(
    entries: Mapping[NestedKey, Tensor],
    group: tuple[str, ...],
    masks: tuple[Tensor, Tensor],
    outcome: Collection[NestedKey],
    copied: Collection[NestedKey] = (),
) -> dict[NestedKey, Tensor]:
    """The entries of a group with other values for agents that do not act, so that theirs have no effect.

    The values are 0, since a centralized network reads the entries of all agents. Flags, and entries under `copied`,
    get those of the first agent that acts instead: a formula that refuses some values accepts these. If there is none,
    flags become true, so that masks of actions allow some.

    Args:
        entries: of a batch; those without a dimension of agents are left out.
        group: the group.
        masks: of the agents that act, ``[*B, n_agents]``, and of those whose next observation is read.
        outcome: entries under ``next`` that belong to the agents that act in the step, such as the reward.
        copied: see above.

    Example:
        >>> mask = torch.tensor([[True, False]])
        >>> without_idle({("a", "x"): torch.tensor([[1.0, torch.nan]])}, ("a",), (mask, mask), ())
        {('a', 'x'): tensor([[1., 0.]])}
    """
    out: dict[NestedKey, Tensor] = {}
    for key, entry in entries.items():
        path, (mask, later) = as_tuple(key), masks
        if path[0] == NEXT:
            path, mask = path[1:], mask if key in outcome else later
        if (path[: len(group)] != group and key not in outcome) or entry.shape[: mask.ndim] != mask.shape:
            continue
        if key in copied or entry.dtype is torch.bool:
            (found,) = without_padding([entry], mask)
            none = torch.ones_like(found) if entry.dtype is torch.bool else torch.zeros_like(found)
            out[key] = found.where(mask.any(), none)
        else:
            out[key] = entry.masked_fill(~fitted(mask, entry), 0)
    return out


def next_values(value: Tensor, entries: Mapping[NestedKey, Tensor], keys: Mapping[str, Any]) -> Tensor:
    """Next values ``[*B, n_agents, F]``, 0 for agents that have none, as `bootstrapped` says; others stay as they are.

    Args:
        value: of the next states.
        entries: of the batch, with the mask under ``next`` if agents do not act.
        keys: of the loss.
    """
    name = agent_mask_key(keys)
    later = None if name is None else entries.get(next_key(name))
    if later is None or later.shape != value.shape[:-1]:
        return value
    return value.where(fitted(later, value), 0)


def per_agent(like: Tensor, entries: Sequence[Tensor]) -> list[Tensor]:
    """Rewards and flags for each agent: entries ``[*B, 1]`` become ``[*B, n_agents, 1]`` where `like` has that shape.

    Others stay as they are.

    Example:
        >>> per_agent(torch.zeros(5, 3, 1), [torch.ones(5, 1)])[0].shape
        torch.Size([5, 3, 1])
    """
    shared = (*like.shape[:-2], 1)
    return [one.unsqueeze(-2).expand(like.shape) if one.shape == shared and like.ndim > 2 else one for one in entries]


def weights_of(weight: Tensor, key: NestedKey, elements: Tensor, size: torch.Size, owner: str) -> Tensor:
    """The weights of a batch ``[*B]`` for each of `elements`, ``[*B]`` or ``[*B, n_agents]``.

    Raises:
        ShapeError: if the weights have another shape.
    """
    if weight.shape != size:
        raise ShapeError(
            f"{owner} got {key_str(key)} of shape {tuple(weight.shape)} for a batch of shape {tuple(size)}: they would"
            " broadcast; weights are [*B]"
        )
    return fitted(weight, elements)


def priority_of(error: Tensor, size: torch.Size, mask: Tensor | None) -> Tensor:
    """The priorities ``[*B]`` of errors ``[*B]``, or ``[*B, n_agents]``: the largest of the agents that act."""
    if error.ndim == len(size):
        return error
    return (error if mask is None or mask.ndim < error.ndim else error.where(mask, 0)).amax(-1)
