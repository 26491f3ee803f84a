"""`EnvPoolEnv`: environments of EnvPool, stepped by C++ threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch

from rl.core.arguments import as_integer
from rl.core.errors import MissingExtraError, SpecError
from rl.core.specs import TensorSpec
from rl.envs._ids import Ids, check_id
from rl.envs._libraries import import_library
from rl.envs.envpool._pool import PoolVector
from rl.envs.gym._wrapper import GymWrapper

__all__ = ["EnvPoolEnv", "MultiThreadedEnv"]


def _library() -> Any:
    return import_library("envpool", needed_by="EnvPoolEnv", extra="envpool", at_least="1.2.5", below="1.3")


class EnvPoolEnv(GymWrapper):
    """Several copies of an environment of EnvPool: Atari, MuJoCo, dm_control, Procgen, MiniGrid and others.

    The batch is ``[num_envs]``. Keys are those of `GymEnv`: ``observation`` (or the keys of a dict), ``reward``,
    ``done``, ``terminated``, ``truncated`` and ``action``. The terminal observation is under ``next``; finished
    elements are reset at once, and not in the step after their last one, as EnvPool does by itself.

    Args:
        env_name: id, such as ``"Pong-v5"``.
        num_envs: number of copies.
        num_threads: C++ threads that step them; as many as there are cores if None.
        categorical_action_encoding: integers instead of one-hot vectors.
        device: device of the tensors; the CPU if None.
        from_pixels: render after every step, into ``pixels`` uint8 ``[n, H, W, 3]``.
        pixels_only: write ``pixels`` instead of the observations.
        info_keys: entries of ``info`` to write, with their specs: ``{"lives": Unbounded((), dtype=torch.int32)}``.
        pool_kwargs: for ``envpool.make_gymnasium``: ``frame_skip``, ``stack_num``, ``episodic_life``,
            ``max_episode_steps`` and others.

    Raises:
        UnknownComponentError: if there is no such id.
        MissingExtraError: if EnvPool is not installed, or has another version, or a library of the system is missing.

    Example:
        >>> env = EnvPoolEnv("CartPole-v1", num_envs=4)
        >>> env.rollout(5, break_when_any_done=False)["observation"].shape
        torch.Size([4, 5, 4])
        >>> env.close()
    """

    available_envs: ClassVar[Ids] = Ids(lambda: _library().list_all_envs())
    """Ids of all environments of EnvPool."""

    def __init__(
        self,
        env_name: str,
        num_envs: int = 1,
        *,
        num_threads: int | None = None,
        categorical_action_encoding: bool = False,
        device: torch.device | str | int | None = None,
        from_pixels: bool = False,
        pixels_only: bool = False,
        info_keys: Mapping[str, TensorSpec] | Iterable[str] | None = None,
        **pool_kwargs: Any,
    ) -> None:
        envpool = _library()
        count = as_integer(num_envs, type(self).__name__, "num_envs", 1)
        check_id("EnvPool", env_name, envpool.list_all_envs())
        if "batch_size" in pool_kwargs or "env_type" in pool_kwargs:
            raise SpecError(
                f"{type(self).__name__} steps all environments together: leave batch_size and env_type out. Use"
                " AsyncEnvPool for environments that do not wait for each other"
            )
        settings = {"num_threads": num_threads or 0, **pool_kwargs}
        if from_pixels:
            settings.setdefault("render_mode", "rgb_array")
        self.env_name = env_name
        try:
            vector = PoolVector(lambda seed: envpool.make_gymnasium(env_name, num_envs=count, seed=seed, **settings))
        except ImportError as error:  # of the system, such as Qt for Procgen; it names the command
            raise MissingExtraError(f"{env_name} needs a library that is not installed: {error}") from error
        super().__init__(
            vector,
            categorical_action_encoding=categorical_action_encoding,
            device=device,
            from_pixels=from_pixels,
            pixels_only=pixels_only,
            info_keys=info_keys,
        )

    def _label(self) -> str:
        return self.env_name

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(f"{self!r} cannot be copied or pickled: it has threads. Send a function that makes it")


class MultiThreadedEnv(EnvPoolEnv):
    """`EnvPoolEnv` with the arguments of TorchRL's class of this name.

    Args:
        num_workers: number of environments.
        env_name: id, such as ``"Pong-v5"``.
        create_env_kwargs: for ``envpool.make_gymnasium``.
        kwargs: further arguments of `EnvPoolEnv`.

    Example:
        >>> MultiThreadedEnv(2, "Pendulum-v1").batch_size
        torch.Size([2])
    """

    def __init__(
        self, num_workers: int, env_name: str, *, create_env_kwargs: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(env_name, num_workers, **{**(create_env_kwargs or {}), **kwargs})
