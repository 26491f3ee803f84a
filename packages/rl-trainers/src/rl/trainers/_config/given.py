"""An environment that a config gets as an object instead of by name. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rl.core.errors import SpecError

__all__ = ["GivenEnv", "named_env"]


class GivenEnv(str):
    """The name of an environment, with the function that makes it in this process."""

    __slots__ = ("make",)

    def __new__(cls, name: str, make: Callable[..., Any]) -> GivenEnv:
        """Take a name and a function."""
        made = super().__new__(cls, name)
        made.make = make
        return made

    def __reduce__(self) -> Any:
        """For other processes."""
        return GivenEnv, (str(self), self.make)

    def __deepcopy__(self, memo: dict[int, Any]) -> GivenEnv:
        return self


def named_env(env: Any) -> Any:
    """The name of an environment class or function, or of an environment from ``gymnasium.make``; else `env`.

    A run needs several copies, so that an environment is rebuilt from its ``spec``, and not used itself.

    Raises:
        SpecError: if it is an environment that cannot be rebuilt.

    Example:
        >>> named_env(dict)
        'builtins:dict'
        >>> named_env("CartPole-v1")
        'CartPole-v1'
    """
    if isinstance(env, str):
        return env
    if callable(env) and not hasattr(env, "step"):
        return _of_callable(env)
    if isinstance(env, type):
        return _of_callable(env)
    if not hasattr(env, "step"):
        return env
    spec = getattr(env, "spec", None)
    if spec is None or getattr(spec, "entry_point", None) is None:
        raise SpecError(
            f"env is a {type(env).__name__}, which cannot be rebuilt, and a run needs several; give the class or a"
            " function that makes it, as in env=MyEnv or env=lambda: MyEnv(size=5)"
        )
    import gymnasium

    return GivenEnv(spec.id, partial(gymnasium.make, spec))


def _of_callable(make: Callable[..., Any]) -> GivenEnv:
    inner = make.func if isinstance(make, partial) else make
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return GivenEnv(f"{getattr(inner, '__module__', type(inner).__module__)}:{name}", make)
