"""`check_recipe`: a recipe keeps the rules of ``rl train``."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from rl.core.errors import CheckError
from rl.core.testing._report import Report, require

__all__ = ["check_recipe"]

_MEMBERS = ("name", "config", "train", "make_policy")


def check_recipe(recipe: Any) -> Report:
    """Check a recipe, such as an `rl.trainers.Algorithm`: its settings and its functions; trains nothing.

    The settings are a frozen dataclass in a module that imports no torch, with a default and a documented line for
    each field, and come back equal from the plain values that a file holds. ``train`` is called as
    ``train(config, out=, resume=, display=)`` and ``make_policy`` as ``make_policy(config, env)``.

    Args:
        recipe: Object with ``name``, ``config``, ``train`` and ``make_policy``.

    Returns:
        What was not exercised: training itself.

    Raises:
        CheckError: an `AssertionError` with the reason first.
    """
    owner = f"recipe {getattr(recipe, 'name', recipe)!r}"
    report = Report(owner)
    missing = [name for name in _MEMBERS if not hasattr(recipe, name)]
    require(not missing, f"no recipe: lacks {missing}", owner)
    config: Any = recipe.config
    usable = isinstance(config, type) and dataclasses.is_dataclass(config)
    require(usable, f"config must be a dataclass, got {config!r}", owner)
    _check_config(config, owner)
    _check_light(config, owner)
    _check_function(
        recipe.train, owner, lambda f: f.bind(None, out=None, resume=None, display=None), "out=, resume=, display="
    )
    _check_function(recipe.make_policy, owner, lambda f: f.bind(None, None), "env")
    report.skip("training: call `train` in a test of its own")
    return report.warn()


def _check_config(config: Any, owner: str) -> None:
    frozen = config.__dataclass_params__.frozen
    require(frozen, f"{config.__name__} is not frozen: settings must not change during a run", owner)
    text = "\n".join(inspect.getdoc(cls) or "" for cls in config.__mro__ if cls is not object)
    for field in dataclasses.fields(config):
        known = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        require(known, f"the setting {field.name!r} has no default", owner)
        documented = re.search(rf"^\s+{re.escape(field.name)}: \S", text, re.MULTILINE) is not None
        require(documented, f"the setting {field.name!r} is not documented under Args of {config.__name__}", owner)
    try:
        settings = config()
    except Exception as error:
        raise CheckError(f"the defaults are refused: {type(error).__name__}: {error} ({owner})") from error
    again = config(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(config)})
    require(again == settings, "settings rebuilt from their values are not equal", owner)


def _check_light(config: Any, owner: str) -> None:
    """The module of the settings imports no torch: ``rl train --help`` would wait for it."""
    code = f"import sys, {config.__module__}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    reason = f"{config.__module__}, the module of the settings, imports torch or does not import"
    require(done.returncode == 0, f"{reason} {done.stderr.strip()[-200:]}".strip(), owner)


def _check_function(function: Any, owner: str, bind: Callable[[inspect.Signature], Any], what: str) -> None:
    require(callable(function), f"{function!r} is no function", owner)
    try:
        bind(inspect.signature(function))
    except TypeError as error:
        raise CheckError(f"{function!r} cannot be called with (config, {what}): {error} ({owner})") from error
