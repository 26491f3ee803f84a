"""Multi-step returns of batches: arguments, ends of trajectories, and the arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.arguments import as_integer, as_number
from rl.core.contract import Key, missing_key_message
from rl.core.errors import ArgumentError, CheckpointError, ContractError, ShapeError
from rl.core.keys import (
    DONE,
    NEXT,
    REWARD,
    TERMINATED,
    TRUNCATED,
    NestedKey,
    as_tuple,
    key_str,
    leaf_keys,
    next_key,
    unwrap,
)
from rl.core.sequences import any_of_step, check_time_order
from rl.core.state import pack, unpack
from rl.replay._layout import Layout, flatten

_MASK: NestedKey = ("collector", "mask")
_WRITTEN = ("steps_to_next_obs", "gamma", "nonterminal")


class MultiStepBase:
    """Base of the components that create multi-step transitions; arguments are those of `MultiStepTransform`."""

    def __init__(
        self,
        n_steps: int,
        gamma: float,
        *,
        reward_keys: Iterable[NestedKey] | None = None,
        done_key: NestedKey | None = None,
        done_keys: Iterable[NestedKey] | None = None,
        mask_key: NestedKey | None = None,
    ) -> None:
        self._owner: Final = type(self).__name__
        self.n_steps: Final = as_integer(n_steps, self._owner, "n_steps", 1)
        self.gamma: Final = as_number(gamma, self._owner, "gamma", least=0, most=1)
        if done_key is not None and done_keys is not None:
            raise ArgumentError(f"{self._owner}: got done_key={done_key!r} and done_keys: pass one of them")
        self.reward_keys: Final = _keys(self._owner, "reward_keys", [REWARD] if reward_keys is None else reward_keys)
        self._any_flag: Final = done_key is None and done_keys is None
        ends = [DONE, TERMINATED, TRUNCATED] if done_keys is None else done_keys
        self.done_keys: Final = _keys(self._owner, "done_keys", ends if done_key is None else [done_key])
        self.mask_key: Final[NestedKey] = _MASK if mask_key is None else unwrap(mask_key)

    def transitions(self, data: TensorDictBase, count: int) -> TensorDictBase | None:
        """Multi-step transitions of the first `count` steps of a batch ``[*B, T]``; None without any.

        Windows end with the batch.

        Raises:
            ContractError: If an entry is missing, an observation has the name of one that is written, or the steps are
                not in time order.
            ShapeError: If a flag or reward has another shape.
        """
        for key in _WRITTEN:
            if data.get(next_key(key), None) is not None:
                raise ContractError(
                    f"{self._owner} writes {key_str(key)}, and the batch has {key_str(next_key(key))}: an observation"
                    " has this name, and would be overwritten. Rename it before (RenameTransform)"
                )
        end, valid = self._ends(data)
        rewards = [self._acted(data, key, self._reward(data, key)) for key in self.reward_keys]
        check_time_order(data, data.ndim - 1, end, self._owner, mask=valid, mask_key=self.mask_key)
        return self._transitions(data, rewards, end, valid, count) if count > 0 else None

    def _ends(self, data: TensorDictBase) -> tuple[Tensor, Tensor | None]:
        """Return whether a trajectory ends at a step, bool ``[*B, T]``, padding included; and which steps are valid."""
        flags = {key: flag for key in self.done_keys if (flag := data.get(next_key(key), None)) is not None}
        absent = [key for key in self.done_keys if key not in flags]
        if absent and (not flags or not self._any_flag):
            remedy = "It ends trajectories: keep it with the steps that were collected, or name another done_key."
            wanted = Key(next_key(absent[0]), remedy=remedy)
            raise ContractError(missing_key_message(self._owner, wanted, leaf_keys(data)))
        end = torch.zeros(data.batch_size, dtype=torch.bool, device=next(iter(flags.values())).device)
        for key, flag in flags.items():
            end = end | self._flag(data, flag, next_key(key))
        valid = data.get(self.mask_key, None)
        if valid is None:
            return end, None
        valid = self._flag(data, valid, self.mask_key)
        return end | ~valid, valid

    def _flag(self, data: TensorDictBase, flag: Tensor, key: NestedKey) -> Tensor:
        shape, path = flag.shape, as_tuple(key)
        of_agents = path[0] == NEXT and len(path) > 2 and shape == (*data.batch_size, *shape[-2:-1], 1)
        if flag.dtype is not torch.bool or not (of_agents or shape in (data.batch_size, (*data.batch_size, 1))):
            size = ", ".join(map(str, data.batch_size))
            raise ShapeError(
                f"{self._owner}: {key_str(key)} is {flag.dtype} {list(shape)}, expected bool [{size}, 1], or"
                f" [{size}, n_agents, 1] in a group: name another flag with done_key"
            )
        before = data.get(path[1:], None) if of_agents else None
        if before is not None and before.shape == shape:  # agents that wait for the others have ended already
            flag = flag & ~before.bool()
        return any_of_step(flag, data.ndim)

    def _acted(self, data: TensorDictBase, key: NestedKey, reward: Tensor) -> Tensor:
        """Return the reward of a group with 0 for the agents that do not act."""
        group = as_tuple(key)[:-1]
        mask: Tensor | None = data.get((*group, "mask"), None) if group else None
        if mask is None:
            return reward
        if mask.dtype is not torch.bool or mask.shape != reward.shape[: data.ndim + 1]:
            raise ShapeError(
                f"{self._owner}: {key_str((*group, 'mask'))} is {mask.dtype} {list(mask.shape)}, expected bool"
                f" {list(reward.shape[: data.ndim + 1])}: true for agents that act. Rename the entry if it means"
                " something else"
            )
        return reward.where(mask.reshape(*mask.shape, *(1,) * (reward.ndim - mask.ndim)), 0)

    def _reward(self, data: TensorDictBase, key: NestedKey) -> Tensor:
        reward = data.get(next_key(key), None)
        if reward is None:
            wanted = Key(next_key(key), remedy="Name the rewards of the batch with reward_keys.")
            raise ContractError(missing_key_message(self._owner, wanted, leaf_keys(data)))
        if not reward.is_floating_point() or reward.shape == data.batch_size:
            raise ShapeError(
                f"{self._owner}: {key_str(next_key(key))} is {reward.dtype} {list(reward.shape)}, expected a"
                f" floating-point reward {[*data.batch_size, 1]}"
            )
        return reward

    def _transitions(
        self, data: TensorDictBase, rewards: list[Tensor], end: Tensor, valid: Tensor | None, count: int
    ) -> TensorDictBase:
        dim, present = data.ndim - 1, data.batch_size[-1]
        out = data[..., :count]
        alive = torch.ones_like(end[..., :count])
        steps = torch.zeros_like(alive, dtype=torch.int64)
        returns = [torch.zeros_like(reward.narrow(dim, 0, count)) for reward in rewards]
        for k in range(min(self.n_steps, present)):
            inside = min(count, present - k)  # windows that have a k-th step
            own = alive.narrow(dim, 0, inside)
            for total, reward in zip(returns, rewards, strict=True):
                term = reward.narrow(dim, k, inside)
                wide = own.reshape(*own.shape, *(1,) * (term.ndim - own.ndim))
                total.narrow(dim, 0, inside).add_(torch.where(wide, self.gamma**k * term, 0.0))
            steps.narrow(dim, 0, inside).add_(own)
            own.logical_and_(~end.narrow(dim, k, inside))
        last = torch.arange(count, device=steps.device) + steps - 1
        after = data.get(NEXT)[_along_last(last)]
        for key, total in zip(self.reward_keys, returns, strict=True):
            *group, name = as_tuple(key)
            after.set(key, total).set((*group, f"original_{name}"), data.get(next_key(key)).narrow(dim, 0, count))
        nonterminal = ~end[..., :count]
        out.set("steps_to_next_obs", steps.unsqueeze(-1))
        out.set("gamma", torch.pow(self.gamma, steps.unsqueeze(-1)))
        out.set("nonterminal", (nonterminal if valid is None else nonterminal & valid[..., :count]).unsqueeze(-1))
        return out.set(NEXT, after)


def _keys(owner: str, name: str, keys: Iterable[NestedKey]) -> list[NestedKey]:
    found: list[NestedKey] = [keys] if isinstance(keys, str) else [unwrap(key) for key in keys]
    if not found:
        raise ArgumentError(f"{owner}: {name} is empty: name at least one key, or leave it out")
    return found


def _along_last(index: Tensor) -> tuple[Tensor, ...]:
    """Return the index that takes, along the last dimension of a batch ``[*B, T]``, elements ``[*B, m]``."""
    dims = index.ndim
    before = [
        torch.arange(size, device=index.device).view(*(1,) * i, size, *(1,) * (dims - 1 - i))
        for i, size in enumerate(index.shape[:-1])
    ]
    return (*(one.expand(index.shape) for one in before), index)


@final
class MultiStepTransform(MultiStepBase):
    """Multi-step transitions: replaces each step by the discounted return of n steps and the state after them.

    For step t of a trajectory that ends at step e, with ``k = min(n_steps, e - t + 1)``:
    ``reward = sum(gamma ** i * reward[t + i] for i in range(k))``, and the other entries under ``next``, end flags
    included, are those of step ``t + k - 1``. The target is then ``reward + gamma ** k * V(next)``: Sutton and Barto,
    "Reinforcement learning: an introduction", 2018, eq. 7.1; Hessel et al., "Rainbow", 2018, eq. 1.

    Works on `extend`: samples are not changed. Takes batches ``[*B, T]`` in time order, one stream for each element of
    ``[*B]``. The last `n_steps` steps of each stream are held back until the next batch, so that the stored steps do
    not depend on how a stream is cut into batches. A trajectory ends where an end flag is true; where it is cut
    without one, mark its last step as done and truncated, as ``env.rollout(..., set_truncated=True)`` does.

    Flags of a group, ``done_key=("agents", "done")``, end the window of all agents where one of them ends, so that the
    state that is reached is as many steps later for each; an agent that waits for the others ends no further window.
    Rewards of a group are 0 where ``("agents", "mask")`` (bool ``[*B, T, n_agents]``) is false.

    Reads the rewards and the end flags under ``next``; of groups also the mask and the flags before the step, where the
    batch has them. Writes, with ``[*B, T, 1]`` each if not stated otherwise:

    - the rewards: n-step returns, in their shape and dtype;
    - ``("next", "original_reward")``: the reward of the step; ``original_`` and its name for another reward;
    - ``steps_to_next_obs``: k, int64;
    - ``gamma``: ``gamma ** k``, float32; `DQNLoss` discounts the next value by it;
    - ``nonterminal``: bool, false at the last step of a trajectory, of any agent of a group, and at padding.

    Args:
        n_steps: Largest number of steps, at least 1.
        gamma: Discount, in [0, 1]; that of the loss.
        reward_keys: Rewards, without ``next``; ``["reward"]`` if None. A reward of a group of agents is
            ``("agents", "reward")``, with any shape after ``[*B, T]``.
        done_key: Only end flag, without ``next``.
        done_keys: Several end flags; ``done``, ``terminated`` and ``truncated``, where the batch has them, if neither
            is given. Flags are bool ``[*B, T, 1]``, or ``[*B, T, n_agents, 1]`` in a group.
        mask_key: Bool ``[*B, T]`` or ``[*B, T, 1]``, false at padding; read where the batch has it. ``("collector",
            "mask")`` if None.

    Raises:
        ArgumentError: If `n_steps` is not an integer of at least 1, `gamma` is outside [0, 1], or a list of keys is
            empty.

    Example:
        >>> from tensordict import TensorDict
        >>> end = torch.tensor([False, False, True, False, False, False]).unsqueeze(-1)
        >>> after = TensorDict(reward=torch.ones(6, 1), done=end, obs=torch.arange(1, 7), batch_size=[6])
        >>> stored = MultiStepTransform(n_steps=2, gamma=0.5).inv(
        ...     TensorDict(obs=torch.arange(6), next=after, batch_size=[6])
        ... )
        >>> stored["next", "reward"].flatten(), stored["next", "obs"], stored["gamma"].flatten()
        (tensor([1.5000, 1.5000, 1.0000, 1.5000]), tensor([2, 3, 3, 5]), tensor([0.2500, 0.2500, 0.5000, 0.2500]))
    """

    _held: TensorDictBase | None = None

    @property
    def held(self) -> int:
        """Number of steps of each stream that are held back."""
        return 0 if self._held is None else self._held.batch_size[-1]

    def __call__(self, data: TensorDictBase) -> TensorDictBase:
        """Return a sample as it is."""
        return data

    def inv(self, data: TensorDictBase) -> TensorDictBase | None:
        """Multi-step transitions ``[*B, T + held - n_steps]``, or None if all steps are held back.

        Raises:
            ContractError: If an entry is missing or new, or the steps are not in time order.
            ShapeError: If `data` has no time dimension or no steps, other streams than before, or a flag or reward
                has another shape.
            SpecError: If a dtype differs from that of the steps that are held back.
        """
        data = self._joined(data)
        out = self.transitions(data, data.batch_size[-1] - self.n_steps)
        self._held = data[..., -self.n_steps :].clone()
        return out

    def empty(self) -> None:
        """Discard the steps that are held back."""
        self._held = None

    def state_dict(self) -> dict[str, Any]:
        """Return the steps that are held back."""
        return {"held": None if self._held is None else pack(self._held, "MultiStepTransform: a step held back")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            CheckpointError: If it is damaged; nothing is changed then.
        """
        held = None if state.get("held") is None else unpack(state["held"], "MultiStepTransform")
        if "held" not in state or not (held is None or (isinstance(held, TensorDictBase) and held.ndim)):
            raise CheckpointError("MultiStepTransform: this is no state of a MultiStepTransform; nothing was changed")
        self._held = held

    def __repr__(self) -> str:
        return f"MultiStepTransform(n_steps={self.n_steps}, gamma={self.gamma}, reward_keys={self.reward_keys})"

    def _joined(self, data: TensorDictBase) -> TensorDictBase:
        """Return the steps that were held back, and those of `data`; shallow."""
        if not data.ndim or 0 in data.batch_size:
            raise ShapeError(
                f"MultiStepTransform: expected a batch [*B, T] in time order with at least one step, got"
                f" {list(data.batch_size)}"
            )
        held, dims = self._held, data.ndim
        if held is None:
            return data.copy()
        if held.batch_size[:-1] != data.batch_size[:-1]:
            raise ShapeError(
                f"MultiStepTransform: holds steps of streams {list(held.batch_size[:-1])} back, and got a batch"
                f" {list(data.batch_size)}: write batches [*B, T] with the same [*B], or empty the buffer first"
            )
        Layout.of(held, dims).check(flatten(data, dims), "MultiStepTransform")
        held = _beside(held, data)
        joined: Any = torch.cat([held, data], dims - 1)
        return joined


def _beside(held: TensorDictBase, data: TensorDictBase) -> TensorDictBase:
    """`held`, each entry on the device of that of `data`: a file had it on the CPU, and the transform has no device."""
    moved: dict[Any, Tensor] = {}
    for key, leaf in held.items(include_nested=True, leaves_only=True):
        other = data.get(key, None)
        if isinstance(leaf, Tensor) and isinstance(other, Tensor) and leaf.device != other.device:
            moved[key] = leaf.to(other.device)
    if moved:
        held = held.copy().clear_device_()
        for key, leaf in moved.items():
            held.set(key, leaf)
    return held
