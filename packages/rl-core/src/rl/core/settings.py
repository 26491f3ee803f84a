"""The only reader of the environment: every variable that the toolkit knows, with its meaning."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rl.core.errors import RLError

__all__ = ["Settings", "normalized", "settings"]

_FALSE = ("", "0", "false", "no", "off")
_TRUE = ("1", "true", "yes", "on")
_NATIVE = ("auto", "off", "require")


@dataclass(frozen=True)
class Settings:
    """Values of the environment variables.

    Args:
        plugins_disable: ``RL_PLUGINS_DISABLE``: plugins to leave out, by entry point or distribution,
            separated by commas; ``*`` leaves out all.
        native: ``RL_NATIVE``: ``auto`` uses compiled libraries where they load, ``off`` never, ``require``
            makes their absence an error.
        debug: ``RL_DEBUG``: commands show tracebacks.
        profiling: ``RL_PROFILING``: named ranges in traces; see `rl.core.set_profiling_enabled`.
        datasets: ``RL_DATASETS``: folder in which data sets are prepared; ``~/.cache/rl/datasets`` if empty.
    """

    plugins_disable: tuple[str, ...] = ()
    native: Literal["auto", "off", "require"] = "auto"
    debug: bool = False
    profiling: bool = False
    datasets: str = ""


def normalized(name: str) -> str:
    """Return the name of a distribution or an entry point, as they are compared.

    Example:
        >>> normalized(" RL_Envs ")
        'rl-envs'
    """
    return name.strip().lower().replace("_", "-").replace(".", "-")


def _flag(variable: str, value: str) -> bool:
    text = value.strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise RLError(f"{variable} is {value!r}; it is a switch: set it to 1 or 0, or unset it")


def settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the environment variables, at each call.

    Args:
        environ: Environment variables; those of the process if None.

    Raises:
        RLError: If a variable has a value that it cannot have.

    Example:
        >>> settings({"RL_PLUGINS_DISABLE": "envs, rl_replay"}).plugins_disable
        ('envs', 'rl-replay')
    """
    env = os.environ if environ is None else environ  # noqa: TID251  the one place that reads it
    native = env.get("RL_NATIVE", "auto").strip().lower() or "auto"
    if native not in _NATIVE:
        raise RLError(f"RL_NATIVE is {native!r}; it is one of {', '.join(_NATIVE)}")
    names = (normalized(name) for name in env.get("RL_PLUGINS_DISABLE", "").split(","))
    return Settings(
        plugins_disable=tuple(dict.fromkeys(name for name in names if name)),
        native=native,
        debug=_flag("RL_DEBUG", env.get("RL_DEBUG", "")),
        profiling=_flag("RL_PROFILING", env.get("RL_PROFILING", "")),
        datasets=env.get("RL_DATASETS", ""),
    )
