"""An environment that a config gets as an object instead of by name. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import yaml

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


def named_env(env: Any, env_kwargs: Any = None) -> tuple[Any, Any]:
    """The name of an environment class or function, or of an environment from ``gymnasium.make``, and its arguments.

    A run needs several copies, and later commands have only its settings. So an environment is rebuilt from its
    ``spec``, and the arguments of it or of a ``functools.partial`` join those of the user.

    Args:
        env: Class, function, environment or name.
        env_kwargs: Arguments from the user, which go before those of `env`.

    Raises:
        SpecError: if it is an environment that cannot be rebuilt, or not from settings.

    Example:
        >>> named_env(dict)
        ('builtins:dict', {})
        >>> named_env(partial(dict, size=5), {"color": "red"})
        ('builtins:dict', {'size': 5, 'color': 'red'})
        >>> named_env("CartPole-v1")
        ('CartPole-v1', {})
    """
    given = {} if env_kwargs is None else env_kwargs
    if isinstance(env, str):
        return env, given
    if isinstance(env, type) or (callable(env) and not hasattr(env, "step")):
        made, found = _of_callable(env)
    elif hasattr(env, "step"):
        made, found = _of_gymnasium(env)
    else:
        return env, given
    return made, {**found, **given} if isinstance(given, Mapping) else given


def _of_callable(make: Callable[..., Any]) -> tuple[GivenEnv, dict[str, Any]]:
    inner, found = make, dict[str, Any]()
    if isinstance(make, partial):
        inner, found = make.func, make.keywords
        if make.args:
            raise _not_named("is a partial with arguments without names")
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return GivenEnv(f"{getattr(inner, '__module__', type(inner).__module__)}:{name}", inner), _plain(found)


def _of_gymnasium(env: Any) -> tuple[GivenEnv, dict[str, Any]]:
    spec = getattr(env, "spec", None)
    if spec is None or getattr(spec, "entry_point", None) is None:
        raise SpecError(
            f"env is a {type(env).__name__}, which cannot be rebuilt, and a run needs several; give the class or a"
            " function that makes it, as in env=MyEnv or env=lambda: MyEnv(size=5)"
        )
    import gymnasium

    own = gymnasium.registry.get(spec.id)
    if own is None or own.entry_point != spec.entry_point:
        raise _not_named(f"has the id {spec.id!r}, which Gymnasium does not know or knows for another environment")
    if spec.additional_wrappers:
        names = ", ".join(wrapper.name for wrapper in spec.additional_wrappers)
        raise _not_named(f"has the wrappers {names}")
    found = {
        name: value
        for name, value in spec.kwargs.items()
        if name not in own.kwargs or repr(own.kwargs[name]) != repr(value)  # comparing arrays gives an array
    }
    if spec.max_episode_steps != own.max_episode_steps:
        found["max_episode_steps"] = -1 if spec.max_episode_steps is None else spec.max_episode_steps
    return GivenEnv(spec.id, partial(gymnasium.make, own)), _plain(found)


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as they are after a file, with lists in place of tuples.

    Raises:
        SpecError: if no settings can hold one.
    """
    plain: dict[str, Any] = {}
    for name, value in arguments.items():
        try:
            plain[name] = yaml.safe_load(yaml.safe_dump(value))
        except yaml.YAMLError:
            raise _not_named(f"has the argument {name} of type {type(value).__name__}") from None
    return plain


def _not_named(what: str) -> SpecError:
    return SpecError(
        f"env {what}, which no settings can hold, so that later commands would make another environment; give a"
        " function of a module that makes all of it, as in env=my_env.make_maze"
    )
