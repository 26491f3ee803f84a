"""Multi-step returns, computed before transitions are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.contract import Key, missing_key_message
from rl.core.errors import CheckpointError, ContractError, ShapeError, SpecError
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
from rl.replay._arguments import whole
from rl.replay._layout import Layout, flatten

__all__ = ["MultiStepTransform"]

_MASK: NestedKey = ("collector", "mask")


@final
class MultiStepTransform:
    """Multi-step transitions: replaces each step by the discounted return of n steps and the state after them.

    For step t of a trajectory that ends at step e, with ``k = min(n_steps, e - t + 1)``:
    ``reward = sum(gamma ** i * reward[t + i] for i in range(k))``, and the other entries under ``next``, end flags
    included, are those of step ``t + k - 1``. The target is then ``reward + gamma ** k * V(next)``: Sutton and Barto,
    "Reinforcement learning: an introduction", 2018, eq. 7.1; Hessel et al., "Rainbow", 2018, eq. 1.

    Works on `extend`: samples are not changed. Takes batches ``[*B, T]`` in time order, one stream for each element of
    ``[*B]``. The last `n_steps` steps of each stream are held back until the next batch, so that the stored steps do
    not depend on how a stream is cut into batches. A trajectory ends where an end flag is true; where it is cut
    without one, mark its last step as done and truncated, as ``env.rollout(..., set_truncated=True)`` does.

    Reads the rewards and the end flags under ``next``. Writes, with ``[*B, T, 1]`` each if not stated otherwise:

    - the rewards: n-step returns, in their shape and dtype;
    - ``("next", "original_reward")``: the reward of the step; ``original_`` and its name for another reward;
    - ``steps_to_next_obs``: k, int64;
    - ``gamma``: ``gamma ** k``, float32; `DQNLoss` discounts the next value by it;
    - ``nonterminal``: bool, false at the last step of a trajectory and at padding.

    Args:
        n_steps: largest number of steps, at least 1.
        gamma: discount, in [0, 1]; that of the loss.
        reward_keys: rewards, without ``next``; ``["reward"]`` if None. A reward of a group of agents is
            ``("agents", "reward")``, with any shape after ``[*B, T]``.
        done_key: the only end flag, without ``next``.
        done_keys: several end flags; ``done``, ``terminated`` and ``truncated``, where the batch has them, if neither
            is given. Flags are bool ``[*B, T, 1]``.
        mask_key: bool ``[*B, T]`` or ``[*B, T, 1]``, false at padding; read where the batch has it. ``("collector",
            "mask")`` if None.

    Raises:
        ContractError: if `n_steps` is not an integer of at least 1, or a list of keys is empty.
        SpecError: if `gamma` is outside [0, 1].

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
        if whole(n_steps) is None:
            raise ContractError(f"MultiStepTransform: n_steps must be an integer of at least 1, got {n_steps!r}")
        if isinstance(gamma, bool) or not 0 <= gamma <= 1:
            raise SpecError(f"MultiStepTransform: gamma must be in [0, 1], got {gamma!r}")
        if done_key is not None and done_keys is not None:
            raise ContractError(f"MultiStepTransform: got done_key={done_key!r} and done_keys: give one of them")
        self.n_steps: Final = int(n_steps)
        self.gamma: Final = float(gamma)
        self.reward_keys: Final = _keys("reward_keys", [REWARD] if reward_keys is None else reward_keys)
        self._any_flag: Final = done_key is None and done_keys is None
        ends = [DONE, TERMINATED, TRUNCATED] if done_keys is None else done_keys
        self.done_keys: Final = _keys("done_keys", ends if done_key is None else [done_key])
        self.mask_key: Final[NestedKey] = _MASK if mask_key is None else unwrap(mask_key)
        self._held: TensorDictBase | None = None

    @property
    def held(self) -> int:
        """Number of steps of each stream that are held back."""
        return 0 if self._held is None else self._held.batch_size[-1]

    def __call__(self, data: TensorDictBase) -> TensorDictBase:
        """A sample, as it is."""
        return data

    def inv(self, data: TensorDictBase) -> TensorDictBase | None:
        """Multi-step transitions ``[*B, T + held - n_steps]``, or None if all steps are held back.

        Raises:
            ContractError: if an entry is missing or new, or the steps are not in time order.
            ShapeError: if `data` has no time dimension or no steps, other streams than before, or a flag or reward
                has another shape.
            SpecError: if a dtype differs from that of the steps that are held back.
        """
        data = self._joined(data)
        end, valid = self._ends(data)
        rewards = [self._reward(data, key) for key in self.reward_keys]
        check_time_order(data, data.ndim - 1, end, "MultiStepTransform", mask=valid, mask_key=self.mask_key)
        steps = data.batch_size[-1]
        out = None if steps <= self.n_steps else self._transitions(data, rewards, end, valid)
        self._held = data[..., -self.n_steps :].clone()
        return out

    def empty(self) -> None:
        """Discard the steps that are held back."""
        self._held = None

    def state_dict(self) -> dict[str, Any]:
        """The steps that are held back."""
        return {"held": None if self._held is None else pack(self._held, "MultiStepTransform: a step held back")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            CheckpointError: if it is damaged; nothing is changed then.
        """
        held = None if state.get("held") is None else unpack(state["held"], "MultiStepTransform")
        if "held" not in state or not (held is None or (isinstance(held, TensorDictBase) and held.ndim)):
            raise CheckpointError("MultiStepTransform: this is no state of a MultiStepTransform; nothing was changed")
        self._held = held

    def __repr__(self) -> str:
        return f"MultiStepTransform(n_steps={self.n_steps}, gamma={self.gamma}, reward_keys={self.reward_keys})"

    def _joined(self, data: TensorDictBase) -> TensorDictBase:
        """The steps that were held back, and those of `data`; shallow."""
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
        joined: Any = torch.cat([held, data], dims - 1)
        return joined

    def _ends(self, data: TensorDictBase) -> tuple[Tensor, Tensor | None]:
        """Whether a trajectory ends at a step, bool ``[*B, T]``, padding included; and which steps are valid."""
        flags = {key: flag for key in self.done_keys if (flag := data.get(next_key(key), None)) is not None}
        absent = [key for key in self.done_keys if key not in flags]
        if absent and (not flags or not self._any_flag):
            remedy = "It ends trajectories: keep it with the steps that were collected, or name another done_key."
            wanted = Key(next_key(absent[0]), remedy=remedy)
            raise ContractError(missing_key_message("MultiStepTransform", wanted, leaf_keys(data)))
        end = torch.zeros(data.batch_size, dtype=torch.bool, device=next(iter(flags.values())).device)
        for key, flag in flags.items():
            end = end | self._flag(data, flag, next_key(key))
        valid = data.get(self.mask_key, None)
        if valid is None:
            return end, None
        valid = self._flag(data, valid, self.mask_key)
        return end | ~valid, valid

    @staticmethod
    def _flag(data: TensorDictBase, flag: Tensor, key: NestedKey) -> Tensor:
        if flag.dtype is not torch.bool or flag.shape not in (data.batch_size, (*data.batch_size, 1)):
            raise ShapeError(
                f"MultiStepTransform: {key_str(key)} is {flag.dtype} {list(flag.shape)}, expected bool"
                f" {[*data.batch_size, 1]}: name a flag of the whole step with done_key"
            )
        return any_of_step(flag, data.ndim)

    @staticmethod
    def _reward(data: TensorDictBase, key: NestedKey) -> Tensor:
        reward = data.get(next_key(key), None)
        if reward is None:
            wanted = Key(next_key(key), remedy="Name the rewards of the batch with reward_keys.")
            raise ContractError(missing_key_message("MultiStepTransform", wanted, leaf_keys(data)))
        if not reward.is_floating_point() or reward.shape == data.batch_size:
            raise ShapeError(
                f"MultiStepTransform: {key_str(next_key(key))} is {reward.dtype} {list(reward.shape)}, expected a"
                f" floating-point reward {[*data.batch_size, 1]}"
            )
        return reward

    def _transitions(
        self, data: TensorDictBase, rewards: list[Tensor], end: Tensor, valid: Tensor | None
    ) -> TensorDictBase:
        dim, count = data.ndim - 1, data.batch_size[-1] - self.n_steps
        out = data[..., :count]
        alive = torch.ones_like(end[..., :count])
        steps = torch.zeros_like(alive, dtype=torch.int64)
        returns = [torch.zeros_like(reward.narrow(dim, 0, count)) for reward in rewards]
        for k in range(self.n_steps):
            for i, reward in enumerate(rewards):
                term = reward.narrow(dim, k, count)
                own = alive.reshape(*alive.shape, *(1,) * (term.ndim - alive.ndim))
                returns[i] = returns[i] + torch.where(own, self.gamma**k * term, 0.0)
            steps = steps + alive
            alive = alive & ~end.narrow(dim, k, count)
        last = torch.arange(count, device=steps.device) + steps - 1
        after = data.get(NEXT)[_along_last(last)]
        for key, reward, total in zip(self.reward_keys, rewards, returns, strict=True):
            *group, name = as_tuple(key)
            after.set(key, total).set((*group, f"original_{name}"), reward.narrow(dim, 0, count))
        nonterminal = ~end[..., :count]
        out.set("steps_to_next_obs", steps.unsqueeze(-1))
        out.set("gamma", torch.pow(self.gamma, steps.unsqueeze(-1)))
        out.set("nonterminal", (nonterminal if valid is None else nonterminal & valid[..., :count]).unsqueeze(-1))
        return out.set(NEXT, after)


def _keys(name: str, keys: Iterable[NestedKey]) -> list[NestedKey]:
    found: list[NestedKey] = [keys] if isinstance(keys, str) else [unwrap(key) for key in keys]
    if not found:
        raise ContractError(f"MultiStepTransform: {name} is empty: name at least one key, or leave it out")
    return found


def _along_last(index: Tensor) -> tuple[Tensor, ...]:
    """The index that takes, along the last dimension of a batch ``[*B, T]``, elements ``[*B, m]``."""
    dims = index.ndim
    before = [
        torch.arange(size, device=index.device).view(*(1,) * i, size, *(1,) * (dims - 1 - i))
        for i, size in enumerate(index.shape[:-1])
    ]
    return (*(one.expand(index.shape) for one in before), index)
