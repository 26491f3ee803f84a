"""Multi-step returns, computed before transitions are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import CheckpointError, ShapeError
from rl.core.state import pack, unpack
from rl.replay._layout import Layout, flatten
from rl.replay._multi_step import MultiStepBase

__all__ = ["MultiStepTransform"]


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
        n_steps: largest number of steps, at least 1.
        gamma: discount, in [0, 1]; that of the loss.
        reward_keys: rewards, without ``next``; ``["reward"]`` if None. A reward of a group of agents is
            ``("agents", "reward")``, with any shape after ``[*B, T]``.
        done_key: the only end flag, without ``next``.
        done_keys: several end flags; ``done``, ``terminated`` and ``truncated``, where the batch has them, if neither
            is given. Flags are bool ``[*B, T, 1]``, or ``[*B, T, n_agents, 1]`` in a group.
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

    _held: TensorDictBase | None = None

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
        out = self.transitions(data, data.batch_size[-1] - self.n_steps)
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
