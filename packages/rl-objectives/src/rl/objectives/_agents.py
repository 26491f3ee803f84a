"""Masks of agents: which of a group act in a step, which have a next value, which are still in the episode."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.contract import Key
from rl.core.errors import ShapeError
from rl.core.keys import DONE, NEXT, TERMINATED, NestedKey, as_tuple, key_str, next_key, unwrap
from rl.objectives._batch import expand_right, leaf_of, mask_keys_of_steps, replace_padding
from rl.objectives.functional._recurrence import linear_recurrence

Entries = dict[NestedKey, Tensor]

AGENT_MASK = "mask"
"""Name that environments give the flags of the agents that act, in each group."""


def group_of(key: Any) -> tuple[str, ...]:
    """Return the group that a key is in: ``("agents",)`` for ``("agents", "action")``, ``()`` at the root.

    Example:
        >>> group_of(("agents", "action")), group_of("action"), group_of(["move", "turn"])
        (('agents',), (), ())
    """
    return () if isinstance(key, list) else as_tuple(key)[:-1]


def in_group(group: tuple[str, ...], name: str) -> NestedKey:
    """Return the key of an entry of a group."""
    return unwrap((*group, name))


class AgentMasks:
    """Masks of the agents of one group, and what they do to entries and values.

    A loss or an estimator has one if its keys are in a group, else None: the path of a single agent does not come here.
    Each mask is bool ``[*B, n_agents]``:

    - *acting*: Agents that act in the step, ``(group, "mask")`` of the batch.
    - *next value*: Agents whose next value is part of their return. These act in the next step, or acted in the last
      step of a truncated episode. With done flags of each agent, an agent that waits for its turn in the last step has
      one too, since its flags show that it has not left.
    - *alive*: Agents that have not left before the step, acting or not; known only with done flags of each agent.

    Args:
        group: Group of the keys.
        keys: Key of each name of the loss or the estimator.
        owner: Component that messages name.
        action: Key of the action, whose shape the mask is checked against; None if nothing reads actions.
        network_inputs: Names of keys that networks read too, as critics read actions.
    """

    def __init__(
        self,
        group: tuple[str, ...],
        keys: Mapping[str, Any],
        owner: str,
        *,
        action: NestedKey | None = None,
        network_inputs: Sequence[str] = (),
    ) -> None:
        self.group, self._owner, self._action = group, owner, action
        self.key = in_group(group, AGENT_MASK)
        self.next_key = next_key(self.key)
        done = keys.get("done", DONE)
        self._done = done if group_of(done) == group else None
        self._next_done = list(dict.fromkeys((next_key(done), next_key(DONE))))
        self._next_terminated = next_key(keys.get("terminated", TERMINATED))
        flags = [keys[name] for name in ("done", "terminated") if name in keys]
        inputs = [keys[name] for name in network_inputs]
        own = [key for key in keys.values() if key not in (*flags, *inputs) and not isinstance(key, list)]
        self._own = {part for key in own for part in (key, next_key(key))}
        self._flags = {part for key in (*flags, self.key) for part in (key, next_key(key))}
        self._next_flags = {next_key(key) for key in flags}
        self._reward = next_key(keys["reward"]) if "reward" in keys else None

    # ---- the three masks

    def acting(self, td: TensorDictBase, steps: Tensor | None = None) -> Tensor | None:
        """Return the mask of agents that act in valid steps; `steps` if the batch has no mask of agents.

        Args:
            td: Batch ``[*B]``.
            steps: Mask of valid steps, ``[*B]``.

        Raises:
            ShapeError: If the mask has another shape or dtype.
        """
        mask: Tensor | None = td.get(self.key, None)
        if mask is None:
            return steps
        action: Tensor = mask if self._action is None else td.get(self._action, mask)
        self._check(mask, self.key, action.shape[: td.ndim + 1])
        return mask if steps is None else mask & expand_right(steps, mask)

    def next_value(self, td: TensorDictBase, acting: Tensor) -> Tensor:
        """Return the mask of agents whose next value is part of the return; `acting` without a mask under ``next``.

        Raises:
            ShapeError: If the mask under ``next`` has another shape or dtype.
        """
        later: Tensor | None = td.get(self.next_key, None)
        if later is None:
            return acting
        self._check(later, self.next_key, acting.shape)

        def flag(key: NestedKey) -> Tensor | None:
            found = leaf_of(td, key)
            return found if found is None else found.bool().squeeze(-1) if found.ndim > acting.ndim else found.bool()

        terminated = flag(self._next_terminated)
        if terminated is None:
            return later
        alive = self.alive(td)
        present = acting if alive is None else acting | alive
        # At a truncation the next value stands for the rest of the return, also of an agent that waits for its turn.
        ends = [end for end in map(flag, self._next_done) if end is not None]
        return torch.stack([later, *[present & end & ~terminated for end in ends]]).any(0)

    def alive(self, td: TensorDictBase) -> Tensor | None:
        """Return the mask of agents still in the episode, acting or not; None without done flags of each agent."""
        left: Tensor | None = None if self._done is None else td.get(self._done, None)
        return None if left is None else ~left.bool().squeeze(-1)

    def of_sequences(self, td: TensorDictBase, time_dim: int | None) -> tuple[Tensor, Tensor] | None:
        """Return the masks *acting* and *next value* for an estimator; None if the batch has no mask of agents.

        Args:
            td: Batch ``[*B]``.
            time_dim: Dimension of time; at its end, waiting agents that are alive have a next value. None for
                estimators that see single steps.
        """
        now = self.acting(td)
        if now is None:
            return None
        later = self.next_value(td, now)
        alive = None if time_dim is None else self.alive(td)
        if alive is None or time_dim is None:
            return now, later
        last = torch.arange(now.shape[time_dim], device=now.device) == now.shape[time_dim] - 1
        return now, later | (last.reshape(-1, *[1] * (now.ndim - 1 - time_dim)) & alive)

    def _check(self, mask: Tensor, name: NestedKey, shape: torch.Size) -> None:
        if mask.dtype is not torch.bool or mask.shape != shape:
            raise ShapeError(
                f"{self._owner}: {key_str(name)} is {mask.dtype} {list(mask.shape)}, expected bool {list(shape)}, a"
                " flag of each agent: true for those that act. Rename the entry if it means something else"
            )

    # ---- entries of a batch

    def mask_entries(
        self, td: TensorDictBase, entries: Entries, steps: Tensor | None, *, recurrent: bool
    ) -> tuple[Entries, Tensor | None]:
        """Replace the entries of agents that do not act, for a loss; return them and the mask of what counts.

        Args:
            td: Batch ``[*B]``.
            entries: Entries that were read.
            steps: Mask of valid steps, ``[*B]``.
            recurrent: Whether networks are recurrent. Their inputs are not replaced: the policy read them as they are.
        """
        mask = self.acting(td, steps)
        if mask is None or mask is steps:
            entries.pop(self.next_key, None)  # without a mask of the step itself it has no meaning
            return entries, steps
        later = self.next_value(td, mask)
        later = later if steps is None else later & expand_right(steps, later)
        rest = {
            key: value
            for key, value in entries.items()
            if key not in self._flags and (key in self._own or not recurrent)
        }
        masked = zero_inactive(rest, self.group, (mask, later), outcome=self._own, copied=self._own)
        return {**entries, **masked, self.key: mask, self.next_key: later}, mask

    def mask_sequences(
        self, td: TensorDictBase, entries: Entries, masks: tuple[Tensor, Tensor], *, recurrent: bool
    ) -> Entries:
        """Replace the entries of agents that do not act, for an estimator.

        Args:
            td: Batch ``[*B]``.
            entries: Entries that were read, with the reward.
            masks: Masks *acting* and *next value*.
            recurrent: Whether the network is recurrent, and its inputs are not replaced.
        """
        assert self._reward is not None  # estimators have the key
        rest = {} if recurrent else {key: entries[key] for key in entries if key not in self._next_flags}
        reward = entries[self._reward]
        out = zero_inactive({**rest, self._reward: reward}, self.group, masks, outcome={self._reward})
        alive = self.alive(td)
        if alive is not None and self._reward in out:  # an agent that waits for its turn still receives rewards
            out[self._reward] = reward.where(expand_right(masks[0] | alive, reward), 0)
        return {**entries, **out}

    # ---- values

    def mask_next_value(self, value: Tensor, entries: Mapping[NestedKey, Tensor]) -> Tensor:
        """Return next values ``[*B, n_agents, F]`` with 0 for agents that have none; others stay as they are.

        Args:
            value: Values of the next states.
            entries: Entries from `mask_entries`.
        """
        later = entries.get(self.next_key)
        if later is None or later.shape != value.shape[:-1]:
            return value
        return value.where(expand_right(later, value), 0)

    def skip_inactive(
        self,
        gamma: float | Tensor,
        values: tuple[Tensor, Tensor],
        outcome: Sequence[Tensor],
        masks: tuple[Tensor, Tensor],
        time_dim: int | None,
    ) -> tuple[Tensor, Tensor]:
        """Return values and next values ``[*B, T, n_agents, 1]`` for returns that skip steps without an act.

        Args:
            gamma: Discount.
            values: Value of each state, and of the state that each step reached.
            outcome: Reward, done and terminated of each agent.
            masks: Masks *acting* and *next value*.
            time_dim: Dimension of time; None for estimators that see single steps.

        Raises:
            ShapeError: If the mask does not have the shape of the values.
        """
        value, next_value = values
        self._check(masks[0], self.key, value.shape[:-1])
        if time_dim is None:
            return value, next_value.where(expand_right(masks[1], next_value), 0)
        return skip_inactive_steps(gamma, value, next_value, outcome, masks, time_dim)


def skip_inactive_steps(
    gamma: float | Tensor,
    value: Tensor,
    next_value: Tensor,
    outcome: Sequence[Tensor],
    masks: tuple[Tensor, Tensor],
    time_dim: int,
) -> tuple[Tensor, Tensor]:
    """Return value and next value of each agent that skip the steps in which it does not act, ``[*B, T, n_agents, 1]``.

    After a step whose next step the agent skips, the next value is the sum of its discounted rewards until its
    next act and of the discounted value there. The value of a skipped step is the same sum, so that it has no
    advantage.

    Args:
        gamma: Discount.
        value: Value of each state.
        next_value: Value of the state that each step reached.
        outcome: Reward, done and terminated of each agent, of that shape.
        masks: Masks *acting* and *next value*, ``[*B, T, n_agents]``.
        time_dim: Dimension of time.
    """
    reward, done, terminated = outcome
    now, later = (expand_right(mask, value) for mask in masks)
    open_ended = ~(later | done)  # the agent does not act next, and the episode continues
    after = next_value.where(later & ~terminated, 0)
    # S_t = V_t where the agent acts, else r_t + gamma * (V' or S_{t+1}): a linear recurrence, backward in time
    addend = value.where(now, reward + gamma * after)
    weight = (gamma * (open_ended & ~now)).expand(value.shape).to(value.dtype)
    skipped = linear_recurrence(addend, weight, time_dim)
    steps = value.shape[time_dim]
    last = torch.zeros_like(skipped.narrow(time_dim, 0, 1))
    following = torch.cat([skipped.narrow(time_dim, 1, steps - 1), last], time_dim)
    return skipped, following.where(open_ended, after)


def mask_keys(name: NestedKey, agents: AgentMasks | None, *, after: bool = False) -> tuple[Key, ...]:
    """Return the masks in a contract: of valid steps, and for a group of agents of those that act.

    Args:
        name: Key of the mask of valid steps.
        agents: Masks of the group, or None.
        after: Whether the mask under ``next`` is read too.
    """
    steps = mask_keys_of_steps(name)
    if agents is None:
        return steps
    names = [agents.key, agents.next_key] if after else [agents.key]
    doc = "true for agents that act in the step, [*B, n_agents]"
    return (*steps, *(Key(one, (), doc, torch.bool, optional=True) for one in names))


def zero_inactive(
    entries: Mapping[NestedKey, Tensor],
    group: tuple[str, ...],
    masks: tuple[Tensor, Tensor],
    outcome: Collection[NestedKey],
    copied: Collection[NestedKey] = (),
) -> Entries:
    """Return the entries of a group with other values for agents that do not act, so that theirs have no effect.

    The values are 0, since a centralized network reads the entries of all agents. Flags, and entries under `copied`,
    get those of the first agent that acts instead: a formula that rejects some values accepts these. If there is none,
    flags become true, so that masks of actions allow some.

    Args:
        entries: Entries of a batch; those without a dimension of agents are left out.
        group: Group of agents.
        masks: Masks of the agents that act, ``[*B, n_agents]``, and of those whose next observation is read.
        outcome: Keys of entries under ``next`` that belong to the agents that act in the step, such as the reward.
        copied: Keys of entries that get the value of an agent that acts.

    Example:
        >>> mask = torch.tensor([[True, False]])
        >>> zero_inactive({("a", "x"): torch.tensor([[1.0, torch.nan]])}, ("a",), (mask, mask), ())
        {('a', 'x'): tensor([[1., 0.]])}
    """
    out: Entries = {}
    for key, entry in entries.items():
        path, (mask, later) = as_tuple(key), masks
        if path[0] == NEXT:
            path, mask = path[1:], mask if key in outcome else later
        if (path[: len(group)] != group and key not in outcome) or entry.shape[: mask.ndim] != mask.shape:
            continue
        if key in copied or entry.dtype is torch.bool:
            (found,) = replace_padding([entry], mask)
            none = torch.ones_like(found) if entry.dtype is torch.bool else torch.zeros_like(found)
            out[key] = found.where(mask.any(), none)
        else:
            out[key] = entry.masked_fill(~expand_right(mask, entry), 0)
    return out


def per_agent(like: Tensor, entries: Sequence[Tensor]) -> list[Tensor]:
    """Return rewards and flags for each agent: ``[*B, 1]`` becomes ``[*B, n_agents, 1]`` where `like` has that shape.

    Others stay as they are.

    Example:
        >>> per_agent(torch.zeros(5, 3, 1), [torch.ones(5, 1)])[0].shape
        torch.Size([5, 3, 1])
    """
    shared = (*like.shape[:-2], 1)
    return [one.unsqueeze(-2).expand(like.shape) if one.shape == shared and like.ndim > 2 else one for one in entries]
