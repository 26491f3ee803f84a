"""`MountainCarEnv`: an underpowered car in a valley, in torch, batched."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rl.core.interfaces import Leaves
from rl.core.specs import Bounded, Composite
from rl.envs.native._base import NativeEnv, action_index, discrete_action

__all__ = ["MountainCarEnv"]

LEFT, RIGHT, TOP_SPEED, GOAL, FORCE, GRAVITY = -1.2, 0.6, 0.07, 0.5, 0.001, 0.0025


class MountainCarEnv(NativeEnv):
    """Mountain car of Moore (1990), as Gymnasium's ``MountainCar-v0``.

    Reads ``action`` (push left, not, or right: one-hot ``[*B, 3]``, or int64 ``[*B]``) and ``state`` ``[*B, 2]``
    (position and velocity). Writes the new ``state``, ``observation`` (the same, float32), ``reward`` ``[*B, 1]`` (-1
    for each step) and the done flags: an episode terminates at position 0.5. Append `StepCounter(max_steps=200)` for
    the time limit; trainers read it from `max_episode_steps`.

    Args:
        batch_size: number of copies in each batch dimension.
        device: device of the tensors; the CPU if None.
        seed: seed of the start states; nondeterministic if None.
        categorical_action_encoding: actions are numbers instead of one-hot vectors.
        dtype: of the state; float64 computes as Gymnasium does.

    Example:
        >>> env = MountainCarEnv(seed=0)
        >>> env.rollout(4)["next", "reward"].sum().item()
        -4.0
    """

    #: the time limit that belongs to the task; nothing here enforces it
    max_episode_steps = 200

    def __init__(
        self,
        batch_size: Iterable[int] = (),
        device: torch.device | str | int | None = None,
        seed: int | None = None,
        *,
        categorical_action_encoding: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(batch_size, device, seed)
        self.dtype, self._categorical = dtype, categorical_action_encoding
        low, high = torch.tensor([LEFT, -TOP_SPEED]), torch.tensor([RIGHT, TOP_SPEED])
        state = Bounded(low.to(dtype), high.to(dtype), dtype=dtype)
        self.observation_spec = Composite(observation=Bounded(low, high), state=state)
        self.state_spec = Composite(state=state.clone())
        self.action_spec = discrete_action(3, categorical=categorical_action_encoding)

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        del mask  # the caller ignores the other rows
        place = self._rand(dtype=self.dtype) * 0.2 - 0.6
        state = torch.stack([place, torch.zeros_like(place)], -1)
        return {**self._set_state_leaves({"state": state}), **self._flags()}

    def _set_state_leaves(self, state: Leaves) -> Leaves:
        return {"state": state["state"], "observation": state["state"].to(torch.float32, copy=True)}

    def _step_leaves(self, root: Leaves) -> Leaves:
        place, speed = root["state"].unbind(-1)
        push = action_index(root["action"], categorical=self._categorical).to(place.dtype) - 1
        speed = (speed + push * FORCE + (3 * place).cos() * -GRAVITY).clamp(-TOP_SPEED, TOP_SPEED)
        place = (place + speed).clamp(LEFT, RIGHT)
        speed = torch.where((place == LEFT) & (speed < 0), 0.0, speed)
        state = torch.stack([place, speed], -1)
        over = (place >= GOAL) & (speed >= 0)
        reward = torch.full_like(over, -1, dtype=torch.float32).unsqueeze(-1)
        return {
            **self._set_state_leaves({"state": state}),
            "reward": reward,
            **self._flags(over),
        }
