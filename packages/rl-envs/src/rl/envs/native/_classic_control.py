"""`AcrobotEnv`: a two-link pendulum in torch, batched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import pi

import torch
from torch import Tensor

from rl.core.arguments import as_number, foreign_arguments
from rl.core.errors import ArgumentError
from rl.core.interfaces import Leaves
from rl.core.specs import Bounded, Composite, Unbounded
from rl.envs.native._base import NativeEnv, action_index, discrete_action

ACROBOT_GRAVITY, ACROBOT_DT = 9.8, 0.2
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
        batch_size: Number of copies in each batch dimension.
        device: Device of the tensors; the CPU if None.
        seed: Seed of the start states; nondeterministic if None.
        categorical_action_encoding: Whether actions are numbers instead of one-hot vectors.
        dtype: Dtype of the state; float64 computes as Gymnasium does.

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
        second = _derivative(state + ACROBOT_DT / 2 * first, torque)
        third = _derivative(state + ACROBOT_DT / 2 * second, torque)
        fourth = _derivative(state + ACROBOT_DT * third, torque)
        angle, joint, turn, bend = (state + ACROBOT_DT / 6 * (first + 2 * second + 2 * third + fourth)).unbind(-1)
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
    phi2 = MASS * CENTER * ACROBOT_GRAVITY * (angle + joint - pi / 2).cos()
    phi1 = (
        -cross * bend.square() * sin
        - 2 * cross * bend * turn * sin
        + (MASS * CENTER + MASS * LENGTH) * ACROBOT_GRAVITY * (angle - pi / 2).cos()
        + phi2
    )
    bend_acc = (torque + d2 / d1 * phi1 - cross * turn.square() * sin - phi2) / (
        MASS * CENTER**2 + INERTIA - d2.square() / d1
    )
    return torch.stack([turn, bend, -(d2 * bend_acc + phi1) / d1, bend_acc], -1)


def _wrapped(angle: Tensor) -> Tensor:
    """Return the angle in [-pi, pi]."""
    return angle - 2 * pi * ((angle.abs() - pi) / (2 * pi)).ceil().clamp(min=0) * angle.sign()


CARTPOLE_GRAVITY, CART, POLE, HALF_LENGTH, CARTPOLE_FORCE, CARTPOLE_DT = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
X_LIMIT, ANGLE_LIMIT = 2.4, 12 * 2 * pi / 360


class CartPoleEnv(NativeEnv):
    """Cart and pole of Barto, Sutton and Anderson (1983), as Gymnasium's ``CartPole-v1``.

    Reads ``action`` (push left or right: one-hot ``[*B, 2]``, or int64 ``[*B]``) and ``state`` ``[*B, 4]`` (position,
    m; velocity, m/s; angle from upright, rad; angular velocity, rad/s). Writes the new ``state``, ``observation``
    (the same, float32), ``reward`` ``[*B, 1]`` (1 for each step) and the done flags: an episode terminates beyond 2.4
    m or 12 degrees. Append `StepCounter(max_steps=500)` for the time limit; trainers read it from
    `max_episode_steps`.

    Args:
        batch_size: Number of copies in each batch dimension.
        device: Device of the tensors; the CPU if None.
        seed: Seed of the start states; nondeterministic if None.
        categorical_action_encoding: Whether actions are numbers instead of one-hot vectors.
        dtype: Dtype of the state; float64 computes as Gymnasium does.

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
        push = (
            action_index(root["action"], categorical=self._categorical).to(x.dtype) * (2 * CARTPOLE_FORCE)
            - CARTPOLE_FORCE
        )
        cos, sin = angle.cos(), angle.sin()
        moment = POLE * HALF_LENGTH
        pull = (push + moment * turn.square() * sin) / (CART + POLE)
        angle_acc = (CARTPOLE_GRAVITY * sin - cos * pull) / (
            HALF_LENGTH * (4 / 3 - POLE * cos.square() / (CART + POLE))
        )
        acc = pull - moment * angle_acc * cos / (CART + POLE)
        state = torch.stack(
            [
                x + CARTPOLE_DT * speed,
                speed + CARTPOLE_DT * acc,
                angle + CARTPOLE_DT * turn,
                turn + CARTPOLE_DT * angle_acc,
            ],
            -1,
        )
        over = (state[..., 0].abs() > X_LIMIT) | (state[..., 2].abs() > ANGLE_LIMIT)
        reward = torch.ones_like(over, dtype=torch.float32).unsqueeze(-1)
        return {
            **self._set_state_leaves({"state": state}),
            "reward": reward,
            **self._flags(over),
        }


LEFT, RIGHT, TOP_SPEED, GOAL, MOUNTAIN_CAR_FORCE, MOUNTAIN_CAR_GRAVITY = -1.2, 0.6, 0.07, 0.5, 0.001, 0.0025


class MountainCarEnv(NativeEnv):
    """Mountain car of Moore (1990), as Gymnasium's ``MountainCar-v0``.

    Reads ``action`` (push left, not, or right: one-hot ``[*B, 3]``, or int64 ``[*B]``) and ``state`` ``[*B, 2]``
    (position and velocity). Writes the new ``state``, ``observation`` (the same, float32), ``reward`` ``[*B, 1]`` (-1
    for each step) and the done flags: an episode terminates at position 0.5. Append `StepCounter(max_steps=200)` for
    the time limit; trainers read it from `max_episode_steps`.

    Args:
        batch_size: Number of copies in each batch dimension.
        device: Device of the tensors; the CPU if None.
        seed: Seed of the start states; nondeterministic if None.
        categorical_action_encoding: Whether actions are numbers instead of one-hot vectors.
        dtype: Dtype of the state; float64 computes as Gymnasium does.

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
        speed = (speed + push * MOUNTAIN_CAR_FORCE + (3 * place).cos() * -MOUNTAIN_CAR_GRAVITY).clamp(
            -TOP_SPEED, TOP_SPEED
        )
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


@foreign_arguments()
class PendulumEnv(NativeEnv):
    """Pendulum swing-up with a limited torque, with the physics and the reward of Gymnasium's ``Pendulum-v1``.

    The entire state is in the TensorDict, so that a step is a function of its input, differentiable with respect to
    state and action. Episodes do not end: append `StepCounter(max_steps=200)` for Gymnasium's time limit; trainers
    read it from `max_episode_steps`.

    Reads ``action`` ``[*B, 1]`` (torque, N m; clamped to ``max_torque``), ``th`` ``[*B]`` (angle from upright, rad) and
    ``thdot`` ``[*B]`` (rad/s). Writes the new ``th`` and ``thdot``, ``observation`` ``[*B, 3]`` (cosine and sine of the
    angle, angular velocity) and ``reward`` ``[*B, 1]``,
    ``-(angle**2 + 0.1 * thdot**2 + 0.001 * torque**2)`` with the angle in ``[-pi, pi)``, before the step. All float32.

    Args:
        batch_size: Number of pendulums in each batch dimension.
        device: Device of the tensors; the CPU if None.
        seed: Seed of the start states; nondeterministic if None. See also `set_seed`.
        physics: Any of ``g`` (m/s^2, 10), ``m`` (kg, 1), ``l`` (m, 1), ``dt`` (s, 0.05), ``max_torque`` (N m, 2),
            ``max_speed`` (rad/s, 8).

    Raises:
        ArgumentError: If a physical constant is unknown or not positive.

    Example:
        >>> env = PendulumEnv(batch_size=[2], seed=0)
        >>> env.rollout(3)["observation"].shape
        torch.Size([2, 3, 3])
    """

    DEFAULTS: Mapping[str, float] = {"g": 10.0, "m": 1.0, "l": 1.0, "dt": 0.05, "max_torque": 2.0, "max_speed": 8.0}

    #: the time limit that belongs to the task; nothing here enforces it
    max_episode_steps = 200

    def __init__(
        self,
        batch_size: Iterable[int] = (),
        device: torch.device | str | int | None = None,
        seed: int | None = None,
        **physics: float,
    ) -> None:
        super().__init__(batch_size, device, seed)
        for name, value in physics.items():
            if name not in self.DEFAULTS:
                raise ArgumentError(f"PendulumEnv has no constant {name!r}; it has {', '.join(self.DEFAULTS)}")
            if name != "g":
                as_number(value, "PendulumEnv", name, above=0)
        self.physics = {**self.DEFAULTS, **physics}
        speed, torque = self.physics["max_speed"], self.physics["max_torque"]
        high = torch.tensor([1.0, 1.0, speed])
        self.observation_spec = Composite(
            observation=Bounded(-high, high), th=Unbounded(()), thdot=Bounded(-speed, speed, shape=())
        )
        self.state_spec = Composite(th=Unbounded(()), thdot=Bounded(-speed, speed, shape=()))
        self.action_spec = Bounded(-torque, torque, shape=(1,))

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        del mask  # the caller ignores the other rows
        th, thdot = (self._rand() * 2 - 1) * pi, self._rand() * 2 - 1
        return {**self._observe(th, thdot), **self._flags()}

    def _set_state_leaves(self, state: Leaves) -> Leaves:
        return self._observe(state["th"], state["thdot"])

    def _step_leaves(self, root: Leaves) -> Leaves:
        th, thdot = root["th"], root["thdot"]
        g, m, length, dt, max_torque, max_speed = self.physics.values()
        torque = root["action"].squeeze(-1).clamp(-max_torque, max_torque)
        angle = (th + pi).remainder(2 * pi) - pi
        cost = angle.square() + 0.1 * thdot.square() + 0.001 * torque.square()
        pull = 1.5 * g / length * th.sin() + 3.0 / (m * length**2) * torque
        thdot = (thdot + pull * dt).clamp(-max_speed, max_speed)
        th = th + thdot * dt
        return {**self._observe(th, thdot), "reward": -cost.unsqueeze(-1), **self._flags()}

    def _observe(self, th: Tensor, thdot: Tensor) -> Leaves:
        return {"observation": torch.stack([th.cos(), th.sin(), thdot], -1), "th": th, "thdot": thdot}
