"""Environments of MuJoCo Playground."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch

from rl.envs._libraries import Ids, check_id, import_library
from rl.envs.brax import BraxWrapper

__all__ = ["MujocoPlaygroundEnv", "MujocoPlaygroundWrapper"]


class MujocoPlaygroundWrapper(BraxWrapper):
    """Wrapper of an environment of MuJoCo Playground, which has the interface of Brax; see `BraxWrapper`.

    Args:
        env: The environment.
        kwargs: Arguments of `BraxWrapper`.
    """

    _extra = "mujoco-playground"

    def __init__(self, env: Any, **kwargs: Any) -> None:
        super().__init__(env, **kwargs)


def _registry() -> Any:
    library = import_library(
        "mujoco_playground",
        needed_by="MujocoPlaygroundEnv",
        extra="mujoco-playground",
        distribution="playground",
        at_least="0.2",
    )
    return library.registry


class MujocoPlaygroundEnv(MujocoPlaygroundWrapper):
    """An environment of MuJoCo Playground by its name; see `BraxWrapper` for what it reads and writes.

    The first step compiles for a minute or two on a CPU.

    Args:
        env_name: Name, such as ``"CartpoleBalance"``.
        config_overrides: Entries of the configuration; ``impl="jax"`` by default, which runs on every device.
        max_episode_steps: Steps after which an episode is truncated; the ``episode_length`` of the task if None.
        batch_size: See `BraxWrapper`, as for the following ones.
        num_envs: The same as ``batch_size=[num_envs]``.
        requires_grad: Whether to let gradients pass through a step.
        device: Device of JAX, or None.

    Raises:
        UnknownComponentError: If there is no such environment.
        MissingExtraError: If MuJoCo Playground is not installed.
    """

    available_envs: ClassVar[Ids] = Ids(lambda: _registry().ALL_ENVS)
    """Names of all environments."""

    def __init__(
        self,
        env_name: str,
        *,
        config_overrides: Mapping[str, Any] | None = None,
        max_episode_steps: int | None = None,
        batch_size: Iterable[int] | None = None,
        num_envs: int | None = None,
        requires_grad: bool = False,
        device: torch.device | str | int | None = None,
    ) -> None:
        registry = _registry()
        check_id("MuJoCo Playground", env_name, registry.ALL_ENVS)
        limit = max_episode_steps or int(registry.get_default_config(env_name).episode_length)
        self.env_name = env_name
        super().__init__(
            registry.load(env_name, config_overrides={"impl": "jax", **(config_overrides or {})}),
            max_episode_steps=limit,
            batch_size=batch_size,
            num_envs=num_envs,
            requires_grad=requires_grad,
            device=device,
        )

    def _label(self) -> str:
        return self.env_name
