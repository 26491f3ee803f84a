"""Ids of PettingZoo and MPE2, and creation of environments by them."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rl.core.errors import MissingExtraError, RLError, UnknownComponentError
from rl.envs._ids import unknown_id
from rl.envs._libraries import import_library

__all__ = ["env_ids", "library", "make_env"]

_VERSION = re.compile(r"[-_]v(\d+)$")


def library() -> Any:
    """The module ``pettingzoo``, of a supported version."""
    return import_library("pettingzoo", needed_by="PettingZooEnv", extra="pettingzoo", at_least="1.27")


def env_ids(*, parallel: bool) -> dict[str, Callable[..., Any]]:
    """Functions that make an environment by id, such as ``"classic/chess_v6"``: PettingZoo's registry and MPE2."""
    zoo = library()
    kind = "parallel" if parallel else "aec"
    registry = zoo.parallel_registry if parallel else zoo.aec_registry
    found: dict[str, Callable[..., Any]] = {
        _VERSION.sub(r"_v\1", name): partial(zoo.make, kind, name) for name in registry
    }
    if find_spec("mpe2") is not None:
        for module in pkgutil.iter_modules(import_module("mpe2").__path__):
            if _VERSION.search(module.name):
                found[f"mpe2/{module.name}"] = partial(_make_mpe, module.name, "parallel_env" if parallel else "env")
    return dict(sorted(found.items()))


def _make_mpe(module: str, function: str, **kwargs: Any) -> Any:
    return getattr(import_module(f"mpe2.{module}"), function)(**kwargs)


def make_env(task: str, *, parallel: bool, **kwargs: Any) -> tuple[str, Any]:
    """Return the full id of `task` and its environment.

    Args:
        task: id; the family in front and the version at the end may be left out.
        parallel: agents act at the same time; if false, they take turns.
        kwargs: for the environment.

    Raises:
        UnknownComponentError: if there is no such id, or `task` fits several.
        RLError: if the environment exists only with turns, or only without.
        MissingExtraError: if a library that it needs is not installed.
    """
    ids = env_ids(parallel=parallel)
    found = _matching(task, ids)
    if not found:
        if _matching(task, env_ids(parallel=not parallel)):
            form = "with turns" if parallel else "without turns"
            raise RLError(f"PettingZoo has {task!r} only {form}: pass parallel={not parallel}")
        raise UnknownComponentError(unknown_id("PettingZoo", task, ids))
    if len({name.rpartition("_v")[0] for name in found}) > 1:
        raise UnknownComponentError(f"PettingZoo has several environments {task!r}: pass one of {', '.join(found)}")
    name = max(found, key=lambda one: int(one.rpartition("_v")[2]))
    try:
        return name, ids[name](**kwargs)
    except (ImportError, import_module("pettingzoo.env_registry.exceptions").FailedToImport) as error:
        family = name.partition("/")[0]
        remedy = 'pip install "rl-envs[pettingzoo]"' if family == "mpe2" else f'pip install "pettingzoo[{family}]"'
        raise MissingExtraError(f"{name} needs a library that is not installed ({error}): {remedy}") from error


def _matching(task: str, ids: dict[str, Callable[..., Any]]) -> list[str]:
    """The ids that `task` abbreviates."""
    wanted = _VERSION.sub(r"_v\1", task)
    return [
        name
        for name in ids
        if wanted in {full for one in (name, _VERSION.sub("", name)) for full in (one, one.partition("/")[2])}
    ]
