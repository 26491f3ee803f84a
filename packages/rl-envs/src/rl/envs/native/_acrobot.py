"""`AcrobotEnv`: a two-link pendulum in torch, batched."""

from __future__ import annotations

from collections.abc import Iterable
from math import pi

import torch
from torch import Tensor

from rl.core.interfaces import Leaves
from rl.core.specs import Bounded, Composite, Unbounded
from rl.envs.native._base import NativeEnv, action_index, discrete_action

__all__ = ["AcrobotEnv"]

GRAVITY, DT = 9.8, 0.2
MASS, LENGTH, CENTER, INERTIA = 1.0, 1.0, 0.5, 1.0  # of both links
TOP_SPEEDS = (4 * pi, 9 * pi)


class AcrobotEnv(NativeEnv):
    """Acrobot of Sutton (1996) with the dynamics of Sutton and Barto's book, as Gymnasium's ``Acrobot-v1``.

    Reads ``action`` (torque -1, 0 or 1 N m at the joint: one-hot ``[*B, 3]``, or int64 ``[*B]``) and ``state``
    ``[*B, 4]`` (angle of the first link from hanging, angle of the second from the first, rad; their velocities,
    rad/s). Writes the new ``state``, ``observation`` ``[*B, 6]`` (cosine and sine of both angles, the velocities;
    float32), ``reward`` ``[*B, 1]`` (-1 for each step, 0 for the last) and the done flags: an episode terminates when
    the tip is one length above the support. One step is a Runge-Kutta step of fourth order over 0.2 s. Append
    `StepCounter(max_steps=500)` for the time limit; trainers read it from `max_episode_steps`.

    Args:
        batch_size: number of copies in each batch dimension.
        device: device of the tensors; the CPU if None.
        seed: seed of the start states; nondeterministic if None.
        categorical_action_encoding: actions are numbers instead of one-hot vectors.
        dtype: of the state; float64 computes as Gymnasium does.

    Example:
        >>> env = AcrobotEnv(batch_size=[2], seed=0)
        >>> env.reset()["observation"].shape
        torch.Size([2, 6])
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
        high = torch.tensor([1.0, 1.0, 1.0, 1.0, *TOP_SPEEDS])
        state = Unbounded((4,), dtype=dtype)
        self.observation_spec = Composite(observation=Bounded(-high, high), state=state)
        self.state_spec = Composite(state=state.clone())
        self.action_spec = discrete_action(3, categorical=categorical_action_encoding)

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        del mask  # the caller ignores the other rows
        state = self._rand(4, dtype=self.dtype) * 0.2 - 0.1
        return {**self._observe(state), **self._flags()}

    def _set_state_leaves(self, state: Leaves) -> Leaves:
        return self._observe(state["state"])

    def _step_leaves(self, root: Leaves) -> Leaves:
        state = root["state"]
        torque = action_index(root["action"], categorical=self._categorical).to(state.dtype) - 1
        first = _derivative(state, torque)
        second = _derivative(state + DT / 2 * first, torque)
        third = _derivative(state + DT / 2 * second, torque)
        fourth = _derivative(state + DT * third, torque)
        angle, joint, turn, bend = (state + DT / 6 * (first + 2 * second + 2 * third + fourth)).unbind(-1)
        angle, joint = _wrapped(angle), _wrapped(joint)
        turn, bend = turn.clamp(-TOP_SPEEDS[0], TOP_SPEEDS[0]), bend.clamp(-TOP_SPEEDS[1], TOP_SPEEDS[1])
        over = -angle.cos() - (joint + angle).cos() > 1
        reward = over.float().unsqueeze(-1) - 1
        return {**self._observe(torch.stack([angle, joint, turn, bend], -1)), "reward": reward, **self._flags(over)}

    @staticmethod
    def _observe(state: Tensor) -> Leaves:
        cos, sin = state[..., :2].cos(), state[..., :2].sin()
        angles = torch.stack([cos, sin], -1).flatten(-2)
        return {"state": state, "observation": torch.cat([angles, state[..., 2:]], -1).float()}


def _derivative(state: Tensor, torque: Tensor) -> Tensor:
    """Time derivative of the state, ``[*B, 4]``."""
    angle, joint, turn, bend = state.unbind(-1)
    cos, sin = joint.cos(), joint.sin()
    cross = MASS * LENGTH * CENTER
    d1 = MASS * CENTER**2 + MASS * (LENGTH**2 + CENTER**2 + 2 * LENGTH * CENTER * cos) + 2 * INERTIA
    d2 = MASS * (CENTER**2 + LENGTH * CENTER * cos) + INERTIA
    phi2 = MASS * CENTER * GRAVITY * (angle + joint - pi / 2).cos()
    phi1 = (
        -cross * bend.square() * sin
        - 2 * cross * bend * turn * sin
        + (MASS * CENTER + MASS * LENGTH) * GRAVITY * (angle - pi / 2).cos()
        + phi2
    )
    bend_acc = (torque + d2 / d1 * phi1 - cross * turn.square() * sin - phi2) / (
        MASS * CENTER**2 + INERTIA - d2.square() / d1
    )
    return torch.stack([turn, bend, -(d2 * bend_acc + phi1) / d1, bend_acc], -1)


def _wrapped(angle: Tensor) -> Tensor:
    """The angle in [-pi, pi]."""
    return angle - 2 * pi * ((angle.abs() - pi) / (2 * pi)).ceil().clamp(min=0) * angle.sign()
