"""`PendulumEnv`: the swing-up task in torch, batched and differentiable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import pi

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.interfaces import Leaves
from rl.core.specs import Bounded, Composite, Unbounded
from rl.envs import _foreign
from rl.envs.native._base import NativeEnv

__all__ = ["PendulumEnv"]


@_foreign.pendulum
class PendulumEnv(NativeEnv):
    """Pendulum swing-up with a limited torque, with the physics and the reward of Gymnasium's ``Pendulum-v1``.

    The whole state is in the TensorDict, so that a step is a function of its input, differentiable with respect to
    state and action. Episodes do not end: append `StepCounter(max_steps=200)` for Gymnasium's time limit; trainers
    read it from `max_episode_steps`.

    Reads ``action`` ``[*B, 1]`` (torque, N m; clamped to ``max_torque``), ``th`` ``[*B]`` (angle from upright, rad) and
    ``thdot`` ``[*B]`` (rad/s). Writes the new ``th`` and ``thdot``, ``observation`` ``[*B, 3]`` (cosine and sine of the
    angle, angular velocity) and ``reward`` ``[*B, 1]``,
    ``-(angle**2 + 0.1 * thdot**2 + 0.001 * torque**2)`` with the angle in ``[-pi, pi)``, before the step. All float32.

    Args:
        batch_size: number of pendulums in each batch dimension.
        device: device of the tensors; the CPU if None.
        seed: seed of the start states; nondeterministic if None. See also `set_seed`.
        physics: any of ``g`` (m/s^2, 10), ``m`` (kg, 1), ``l`` (m, 1), ``dt`` (s, 0.05), ``max_torque`` (N m, 2),
            ``max_speed`` (rad/s, 8).

    Raises:
        SpecError: if a physical constant is unknown or not positive.

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
                raise SpecError(f"PendulumEnv has no constant {name!r}; it has {', '.join(self.DEFAULTS)}")
            if name != "g" and not value > 0:
                raise SpecError(f"PendulumEnv: {name} must be positive, got {value}")
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
