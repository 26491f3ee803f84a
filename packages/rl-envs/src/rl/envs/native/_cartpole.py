"""`CartPoleEnv`: pole balancing in torch, batched."""

from __future__ import annotations

from collections.abc import Iterable
from math import pi

import torch
from torch import Tensor

from rl.core.interfaces import Leaves
from rl.core.specs import Bounded, Composite, Unbounded
from rl.envs.native._base import NativeEnv, action_index, discrete_action

__all__ = ["CartPoleEnv"]

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, DT = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
X_LIMIT, ANGLE_LIMIT = 2.4, 12 * 2 * pi / 360


class CartPoleEnv(NativeEnv):
    """Cart and pole of Barto, Sutton and Anderson (1983), as Gymnasium's ``CartPole-v1``.

    Reads ``action`` (push left or right: one-hot ``[*B, 2]``, or int64 ``[*B]``) and ``state`` ``[*B, 4]`` (position,
    m; velocity, m/s; angle from upright, rad; angular velocity, rad/s). Writes the new ``state``, ``observation``
    (the same, float32), ``reward`` ``[*B, 1]`` (1 for each step) and the done flags: an episode terminates beyond 2.4
    m or 12 degrees. Append `StepCounter(max_steps=500)` for the time limit; trainers read it from
    `max_episode_steps`.

    Args:
        batch_size: number of copies in each batch dimension.
        device: device of the tensors; the CPU if None.
        seed: seed of the start states; nondeterministic if None.
        categorical_action_encoding: actions are numbers instead of one-hot vectors.
        dtype: of the state; float64 computes as Gymnasium does.

    Example:
        >>> env = CartPoleEnv(batch_size=[3], seed=0)
        >>> env.rollout(2)["observation"].shape
        torch.Size([3, 2, 4])
    """

    #: the time limit that belongs to the task; nothing here enforces it
    max_episode_steps = 500

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
        largest = torch.finfo(torch.float32).max
        high = torch.tensor([2 * X_LIMIT, largest, 2 * ANGLE_LIMIT, largest])
        state = Unbounded((4,), dtype=dtype)
        self.observation_spec = Composite(observation=Bounded(-high, high), state=state)
        self.state_spec = Composite(state=state.clone())
        self.action_spec = discrete_action(2, categorical=categorical_action_encoding)

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        del mask  # the caller ignores the other rows
        state = self._rand(4, dtype=self.dtype) * 0.1 - 0.05
        return {**self._set_state_leaves({"state": state}), **self._flags()}

    def _set_state_leaves(self, state: Leaves) -> Leaves:
        return {"state": state["state"], "observation": state["state"].to(torch.float32, copy=True)}

    def _step_leaves(self, root: Leaves) -> Leaves:
        x, speed, angle, turn = root["state"].unbind(-1)
        push = action_index(root["action"], categorical=self._categorical).to(x.dtype) * (2 * FORCE) - FORCE
        cos, sin = angle.cos(), angle.sin()
        moment = POLE * HALF_LENGTH
        pull = (push + moment * turn.square() * sin) / (CART + POLE)
        angle_acc = (GRAVITY * sin - cos * pull) / (HALF_LENGTH * (4 / 3 - POLE * cos.square() / (CART + POLE)))
        acc = pull - moment * angle_acc * cos / (CART + POLE)
        state = torch.stack([x + DT * speed, speed + DT * acc, angle + DT * turn, turn + DT * angle_acc], -1)
        over = (state[..., 0].abs() > X_LIMIT) | (state[..., 2].abs() > ANGLE_LIMIT)
        reward = torch.ones_like(over, dtype=torch.float32).unsqueeze(-1)
        return {
            **self._set_state_leaves({"state": state}),
            "reward": reward,
            **self._flags(over),
        }
