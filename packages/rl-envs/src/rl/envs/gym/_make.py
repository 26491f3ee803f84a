"""Creation of Gymnasium environments by id, with errors that name the remedy."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rl.core.errors import MissingExtraError, RLError, UnknownComponentError
from rl.envs._libraries import import_library

if TYPE_CHECKING:
    import gymnasium as gymnasium  # noqa: PLC0414  the other modules import it from here
else:
    gymnasium = import_library("gymnasium", needed_by="GymEnv", extra="gym", at_least="1.1")


_EXTRAS = {
    "box2d": "rl-envs[box2d]",
    "mujoco": "rl-envs[mujoco]",
    "toy_text": "gymnasium[toy-text]",
    "classic_control": "gymnasium[classic-control]",
    "phys2d": "gymnasium[jax]",
    "tabular": "gymnasium[jax]",
}
_LIBRARIES = {"ALE/": ("ale_py", "atari"), "MiniGrid-": ("minigrid", "minigrid"), "BabyAI-": ("minigrid", "minigrid")}
"""Prefix of ids, the module whose import registers them, and the extra that installs it."""

_NAMESPACES = {"highway": "highway-env"}


def make(env_name: str, **kwargs: Any) -> Any:
    """Call ``gymnasium.make``.

    Raises:
        UnknownComponentError: If no such id is registered.
        MissingExtraError: If a library that it needs is not installed.
    """
    return _explained(lambda: gymnasium.make(env_name, **kwargs), env_name)


def make_vector(env_name: str, num_envs: int, **kwargs: Any) -> Any:
    """Call ``gymnasium.make_vec`` for the environment's own vector environment.

    Raises:
        RLError: If the environment has none.
    """
    spec = _explained(lambda: gymnasium.spec(env_name), env_name)
    if spec.vector_entry_point is None:
        raise RLError(
            f"{env_name} has no vector environment of its own: leave vectorization='in-process', which steps"
            f" num_envs={num_envs}"
            " environments one after the other"
        )
    return _explained(
        lambda: gymnasium.make_vec(env_name, num_envs, vectorization_mode="vector_entry_point", **kwargs), env_name
    )


def make_async(make_one: Callable[[], Any], num_envs: int) -> Any:
    """Return a `gymnasium.vector.AsyncVectorEnv` that resets on request."""
    mode = gymnasium.vector.AutoresetMode.DISABLED
    return gymnasium.vector.AsyncVectorEnv([make_one] * num_envs, autoreset_mode=mode)


def _register(env_name: str) -> None:
    """Import the library that registers an id, if it is one of `_LIBRARIES`.

    Raises:
        MissingExtraError: If it is not installed.
    """
    for prefix, (module, extra) in _LIBRARIES.items():
        if env_name.startswith(prefix) and env_name not in gymnasium.registry:
            try:
                import_module(module)
            except ModuleNotFoundError as error:
                raise MissingExtraError(
                    f"{env_name} needs a library that is not installed: pip install 'rl-envs[{extra}]'"
                ) from error


def _explained(call: Callable[[], Any], env_name: str) -> Any:
    _register(env_name)
    try:
        return call()
    except gymnasium.error.UnregisteredEnv as error:
        raise UnknownComponentError(_unknown(env_name, str(error))) from error
    except gymnasium.error.DeprecatedEnv as error:
        raise UnknownComponentError(f"Gymnasium has removed {env_name!r}: {error}") from error
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise MissingExtraError(_missing(env_name, error)) from error


def _unknown(env_name: str, said: str) -> str:
    namespace = env_name.split("/", maxsplit=1)[0].lower() if "/" in env_name else ""
    if namespace in _NAMESPACES:
        package = _NAMESPACES[namespace]
        module = package.replace("-", "_")
        return (
            f"Gymnasium knows no environment {env_name!r}: the ids of {env_name.split('/', maxsplit=1)[0]!r} come"
            " with another"
            f" package: pip install {package}, and name the module that registers them: '{module}:{env_name}'"
        )
    ids = list(gymnasium.registry)
    by_lower = {name.lower(): name for name in ids}
    stem = env_name.rsplit("-v", maxsplit=1)[0].lower()
    same = sorted(name for name in ids if name.rsplit("-v", maxsplit=1)[0].lower() == stem)
    close = same or [by_lower[name] for name in get_close_matches(env_name.lower(), by_lower, n=3, cutoff=0.6)]
    hint = f" Did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
    return f"Gymnasium knows no environment {env_name!r}.{hint} Gymnasium says: {said}"


def _missing(env_name: str, error: BaseException) -> str:
    entry = ""
    spec = gymnasium.registry.get(env_name)
    if spec is not None and isinstance(spec.entry_point, str):
        entry = spec.entry_point.split(":", maxsplit=1)[0]
    family = next((extra for name, extra in _EXTRAS.items() if f".{name}" in entry), None)
    if family is None:
        name = getattr(error, "name", None)
        family = name.split(".", maxsplit=1)[0] if name else None
    line = f": pip install '{family}'" if family is not None else ""
    return f"{env_name} needs a library that is not installed{line}. Gymnasium says: {error}"
