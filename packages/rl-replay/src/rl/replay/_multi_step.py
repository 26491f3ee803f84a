"""Multi-step returns of batches: arguments, ends of trajectories, and the arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.contract import Key, missing_key_message
from rl.core.errors import ContractError, ShapeError, SpecError
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
from rl.replay._arguments import whole

__all__ = ["MultiStepBase"]

_MASK: NestedKey = ("collector", "mask")
_WRITTEN = ("steps_to_next_obs", "gamma", "nonterminal")


class MultiStepBase:
    """Base of the components that make multi-step transitions; arguments are those of `MultiStepTransform`."""

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
        if whole(n_steps) is None:
            raise ContractError(f"{self._owner}: n_steps must be an integer of at least 1, got {n_steps!r}")
        if isinstance(gamma, bool) or not 0 <= gamma <= 1:
            raise SpecError(f"{self._owner}: gamma must be in [0, 1], got {gamma!r}")
        if done_key is not None and done_keys is not None:
            raise ContractError(f"{self._owner}: got done_key={done_key!r} and done_keys: give one of them")
        self.n_steps: Final = int(n_steps)
        self.gamma: Final = float(gamma)
        self.reward_keys: Final = _keys(self._owner, "reward_keys", [REWARD] if reward_keys is None else reward_keys)
        self._any_flag: Final = done_key is None and done_keys is None
        ends = [DONE, TERMINATED, TRUNCATED] if done_keys is None else done_keys
        self.done_keys: Final = _keys(self._owner, "done_keys", ends if done_key is None else [done_key])
        self.mask_key: Final[NestedKey] = _MASK if mask_key is None else unwrap(mask_key)

    def transitions(self, data: TensorDictBase, count: int) -> TensorDictBase | None:
        """Multi-step transitions of the first `count` steps of a batch ``[*B, T]``; None without any.

        Windows end with the batch.

        Raises:
            ContractError: if an entry is missing, an observation has the name of one that is written, or the steps are
                not in time order.
            ShapeError: if a flag or reward has another shape.
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
        """Whether a trajectory ends at a step, bool ``[*B, T]``, padding included; and which steps are valid."""
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
        """The reward of a group with 0 for the agents that do not act."""
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
        raise ContractError(f"{owner}: {name} is empty: name at least one key, or leave it out")
    return found


def _along_last(index: Tensor) -> tuple[Tensor, ...]:
    """The index that takes, along the last dimension of a batch ``[*B, T]``, elements ``[*B, m]``."""
    dims = index.ndim
    before = [
        torch.arange(size, device=index.device).view(*(1,) * i, size, *(1,) * (dims - 1 - i))
        for i, size in enumerate(index.shape[:-1])
    ]
    return (*(one.expand(index.shape) for one in before), index)
