"""Locomotion tasks: Gymnasium's HalfCheetah, Hopper, Walker2d, Ant and Humanoid (v5), batched."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl.envs.mujoco._base import Array, MujocoEnv

__all__ = ["AntEnv", "HalfCheetahEnv", "HopperEnv", "HumanoidEnv", "Walker2dEnv"]


class _Runner(MujocoEnv):
    """A task whose reward is the speed forwards, a bonus for being healthy, and costs.

    Args:
        num_envs: see `MujocoEnv`.
        forward_reward_weight: of the speed along the x axis, in meters a second.
        ctrl_cost_weight: of the sum of the squared actions.
        healthy_reward: for each step in which the robot is healthy.
        terminate_when_unhealthy: end the episode otherwise.
        settings: further arguments of `MujocoEnv`.
    """

    forward_reward_weight = 1.0
    ctrl_cost_weight = 0.1
    healthy_reward = 0.0
    terminate_when_unhealthy = True

    def __init__(
        self,
        num_envs: int | None = None,
        *,
        forward_reward_weight: float | None = None,
        ctrl_cost_weight: float | None = None,
        healthy_reward: float | None = None,
        terminate_when_unhealthy: bool | None = None,
        **settings: Any,
    ) -> None:
        given = {
            "forward_reward_weight": forward_reward_weight,
            "ctrl_cost_weight": ctrl_cost_weight,
            "healthy_reward": healthy_reward,
            "terminate_when_unhealthy": terminate_when_unhealthy,
        }
        for name, value in given.items():
            if value is not None:
                setattr(self, name, value)
        super().__init__(num_envs, **settings)

    def _judge(self, before: Array, after: Array, action: Array) -> tuple[Array, Array]:
        speed = (after[:, 0] - before[:, 0]) / self.dt
        healthy = self._healthy()
        reward = self.forward_reward_weight * speed + self.healthy_reward * healthy
        reward = reward - (self.ctrl_cost_weight * np.square(action).sum(1) + self._contact_cost())
        return reward, ~healthy & self.terminate_when_unhealthy

    def _healthy(self) -> Array:
        """Whether each robot is healthy, bool ``[n]``."""
        return np.ones(len(self.data), np.bool_)

    def _contact_cost(self) -> Any:
        return 0.0

    def _observe(self) -> Array:
        return np.concatenate([self.field("qpos")[:, 1:], self.field("qvel")], axis=1)


class HalfCheetahEnv(_Runner):
    """Run with a planar two-legged robot, ``HalfCheetah-v5`` of Gymnasium: 17 observations, 6 joints, never terminated.

    Args:
        num_envs: number of simulations; no batch if None.
        settings: ``forward_reward_weight`` (1.0), ``ctrl_cost_weight`` (0.1), and arguments of `MujocoEnv`.

    Example:
        >>> HalfCheetahEnv(num_envs=4).rollout(3)["observation"].shape
        torch.Size([4, 3, 17])
    """

    xml_file, frame_skip, reset_noise_scale = "half_cheetah.xml", 5, 0.1

    def _start(self, generator: np.random.Generator) -> tuple[Array, Array]:
        return _normal_start(self._first, self.reset_noise_scale, generator)


class HopperEnv(_Runner):
    """Hop on one leg, ``Hopper-v5`` of Gymnasium: 11 observations, 3 joints; terminated when it falls.

    Args:
        num_envs: number of simulations; no batch if None.
        settings: ``forward_reward_weight`` (1.0), ``ctrl_cost_weight`` (0.001), ``healthy_reward`` (1.0),
            ``terminate_when_unhealthy`` (True), and arguments of `MujocoEnv`.

    Example:
        >>> HopperEnv().action_spec.shape
        torch.Size([3])
    """

    xml_file, frame_skip, reset_noise_scale = "hopper.xml", 4, 5e-3
    ctrl_cost_weight, healthy_reward = 1e-3, 1.0

    def _healthy(self) -> Array:
        qpos = self.field("qpos")
        state = np.concatenate([qpos[:, 2:], self.field("qvel")], axis=1)
        return (np.abs(state) < 100).all(1) & (qpos[:, 1] > 0.7) & (np.abs(qpos[:, 2]) < 0.2)

    def _observe(self) -> Array:
        return np.concatenate([self.field("qpos")[:, 1:], np.clip(self.field("qvel"), -10, 10)], axis=1)


class Walker2dEnv(_Runner):
    """Walk with a planar robot, ``Walker2d-v5`` of Gymnasium: 17 observations, 6 joints; terminated when it falls.

    Args:
        num_envs: number of simulations; no batch if None.
        settings: as for `HopperEnv`.

    Example:
        >>> Walker2dEnv(num_envs=2).rollout(2)["next", "reward"].shape
        torch.Size([2, 2, 1])
    """

    xml_file, frame_skip, reset_noise_scale = "walker2d_v5.xml", 4, 5e-3
    ctrl_cost_weight, healthy_reward = 1e-3, 1.0

    def _healthy(self) -> Array:
        height, angle = self.field("qpos")[:, 1:3].T
        return (height > 0.8) & (height < 2.0) & (np.abs(angle) < 1.0)

    def _observe(self) -> Array:
        return np.concatenate([self.field("qpos")[:, 1:], np.clip(self.field("qvel"), -10, 10)], axis=1)


class AntEnv(_Runner):
    """Run with a four-legged robot, ``Ant-v5`` of Gymnasium: 105 observations with contact forces, 8 joints.

    Args:
        num_envs: number of simulations; no batch if None.
        contact_cost_weight: of the sum of the squared contact forces.
        settings: ``forward_reward_weight`` (1.0), ``ctrl_cost_weight`` (0.5), ``healthy_reward`` (1.0),
            ``terminate_when_unhealthy`` (True), and arguments of `MujocoEnv`.

    Example:
        >>> AntEnv(num_envs=2).rollout(2)["observation"].shape
        torch.Size([2, 2, 105])
    """

    xml_file, frame_skip, reset_noise_scale = "ant.xml", 5, 0.1
    ctrl_cost_weight, healthy_reward = 0.5, 1.0

    def __init__(self, num_envs: int | None = None, *, contact_cost_weight: float = 5e-4, **settings: Any) -> None:
        self.contact_cost_weight = contact_cost_weight
        super().__init__(num_envs, **settings)

    def _places(self) -> Array:
        return self.field("xpos")[:, 1, :2]

    def _forces(self) -> Array:
        return np.clip(self.field("cfrc_ext"), -1.0, 1.0)

    def _contact_cost(self) -> Any:
        return self.contact_cost_weight * np.square(self._forces()).sum((1, 2))

    def _healthy(self) -> Array:
        qpos, qvel = self.field("qpos"), self.field("qvel")
        finite = np.isfinite(qpos).all(1) & np.isfinite(qvel).all(1)
        return finite & (qpos[:, 2] >= 0.2) & (qpos[:, 2] <= 1.0)

    def _observe(self) -> Array:
        forces = self._forces()[:, 1:].reshape(len(self.data), -1)
        return np.concatenate([self.field("qpos")[:, 2:], self.field("qvel"), forces], axis=1)

    def _start(self, generator: np.random.Generator) -> tuple[Array, Array]:
        return _normal_start(self._first, self.reset_noise_scale, generator)


class HumanoidEnv(_Runner):
    """Run with a humanoid, ``Humanoid-v5`` of Gymnasium: 348 observations with inertia and forces, 17 joints.

    Args:
        num_envs: number of simulations; no batch if None.
        contact_cost_weight: of the sum of the squared contact forces; the cost is at most 10.
        settings: ``forward_reward_weight`` (1.25), ``ctrl_cost_weight`` (0.1), ``healthy_reward`` (5.0),
            ``terminate_when_unhealthy`` (True), and arguments of `MujocoEnv`.

    Example:
        >>> HumanoidEnv().rollout(2)["observation"].shape
        torch.Size([2, 348])
    """

    xml_file, frame_skip, reset_noise_scale = "humanoid.xml", 5, 1e-2
    forward_reward_weight, healthy_reward = 1.25, 5.0

    def __init__(self, num_envs: int | None = None, *, contact_cost_weight: float = 5e-7, **settings: Any) -> None:
        self.contact_cost_weight = contact_cost_weight
        super().__init__(num_envs, **settings)

    def _places(self) -> Array:
        mass = self.model.body_mass.reshape(1, -1, 1)
        return ((mass * self.field("xipos")).sum(1) / mass.sum())[:, :2]

    def _judge(self, before: Array, after: Array, action: Array) -> tuple[Array, Array]:
        return super()._judge(before, after, action.astype(np.float64))  # Gymnasium's cost is that of MjData.ctrl

    def _contact_cost(self) -> Any:
        return np.minimum(self.contact_cost_weight * np.square(self.field("cfrc_ext")).sum((1, 2)), 10.0)

    def _healthy(self) -> Array:
        height = self.field("qpos")[:, 2]
        return (height > 1.0) & (height < 2.0)

    def _observe(self) -> Array:
        count = len(self.data)
        parts = [self.field("qpos")[:, 2:], self.field("qvel")]
        parts += [self.field(name)[:, 1:].reshape(count, -1) for name in ("cinert", "cvel")]
        parts += [self.field("qfrc_actuator")[:, 6:], self.field("cfrc_ext")[:, 1:].reshape(count, -1)]
        return np.concatenate(parts, axis=1)


def _normal_start(first: tuple[Array, Array], scale: float, generator: np.random.Generator) -> tuple[Array, Array]:
    """Uniform noise of positions and normal noise of velocities."""
    qpos, qvel = first
    return (
        qpos + generator.uniform(-scale, scale, size=qpos.shape),
        qvel + scale * generator.standard_normal(qvel.shape),
    )
