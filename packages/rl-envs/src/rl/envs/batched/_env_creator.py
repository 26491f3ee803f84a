"""`EnvCreator`: a function that makes environments which share running statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.envs import transforms as _transforms
from rl.envs.base._base import EnvBase

__all__ = ["EnvCreator"]


class EnvCreator:
    """Function that makes environments, with its arguments; those that it makes share their running statistics.

    The statistics of `VecNorm` and `RewardNorm` are in shared memory: environments in this process and in others, to
    which the creator is sent, update the same ones.

    Args:
        create_env_fn: makes an environment.
        create_env_kwargs: its arguments.
        share_memory: share the statistics; one environment is made for that at construction, and closed.

    Example:
        >>> from rl.envs import GymEnv, TransformedEnv, VecNorm
        >>> def make(name):
        ...     return TransformedEnv(GymEnv(name), VecNorm(["observation"]))
        >>> create = EnvCreator(make, {"name": "CartPole-v1"})
        >>> train, other = create(), create()
        >>> _ = train.rollout(5)
        >>> bool((train.transform.loc["observation"] == other.transform.loc["observation"]).all())
        True
    """

    def __init__(
        self,
        create_env_fn: Callable[..., Env],
        create_env_kwargs: Mapping[str, Any] | None = None,
        *,
        share_memory: bool = True,
    ) -> None:
        if not callable(create_env_fn):
            raise SpecError(
                f"EnvCreator takes a function that makes an environment, got a {type(create_env_fn).__name__}: write"
                " EnvCreator(lambda: env_class(...))"
            )
        self.create_env_fn, self.create_env_kwargs = create_env_fn, dict(create_env_kwargs or {})
        self._shared: list[Any] = []
        if share_memory:
            first = create_env_fn(**self.create_env_kwargs)
            self._shared = [one.clone() for one in _statistics(first)]
            for one in self._shared:
                one.share_memory()
            first.close()

    def __call__(self, **kwargs: Any) -> Env:
        """Make an environment.

        Args:
            kwargs: further arguments.
        """
        env = self.create_env_fn(**{**self.create_env_kwargs, **kwargs})
        if self._shared:
            found = list(_statistics(env))
            if len(found) != len(self._shared):
                raise SpecError(
                    f"EnvCreator: this environment has {len(found)} transforms with running statistics, the first one"
                    f" had {len(self._shared)}: let the function always append the same, or pass share_memory=False"
                )
            for one, source in zip(found, self._shared, strict=True):
                one.share_statistics(source)
        return env

    def make_variant(self, **kwargs: Any) -> EnvCreator:
        """Return a creator with other arguments that shares the same statistics."""
        other = EnvCreator(self.create_env_fn, {**self.create_env_kwargs, **kwargs}, share_memory=False)
        other._shared = self._shared  # another of its kind
        return other

    def __repr__(self) -> str:
        name = getattr(self.create_env_fn, "__name__", type(self.create_env_fn).__name__)
        return f"EnvCreator({name}, {self.create_env_kwargs})"


def _statistics(env: Any) -> Iterator[Any]:
    """The transforms of an environment that have running statistics."""
    while isinstance(env, EnvBase):
        transform = vars(env).get("transform")
        for one in [] if transform is None else getattr(transform, "transforms", [transform]):
            if isinstance(one, (_transforms.VecNorm, _transforms.RewardNorm)):
                yield one
        env = vars(env).get("base_env")
