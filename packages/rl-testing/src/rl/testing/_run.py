"""Conformance of recipes and loggers."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rl.core.errors import CheckError
from rl.core.interfaces import Logger
from rl.testing._report import Report, require

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
        CheckError: An `AssertionError` with the reason first.
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
        raise CheckError(f"the defaults are rejected: {type(error).__name__}: {error} ({owner})") from error
    again = config(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(config)})
    require(again == settings, "settings rebuilt from their values are not equal", owner)


def _check_light(config: Any, owner: str) -> None:
    """Check that the module of the settings imports no torch: ``rl train --help`` would wait for it."""
    # the tests of a plugin may find it on a path of their own
    code = f"import sys; sys.path[:] = {sys.path!r}; import {config.__module__}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    reason = f"{config.__module__}, the module of the settings, imports torch or does not import"
    require(done.returncode == 0, f"{reason} {done.stderr.strip()[-200:]}".strip(), owner)


def _check_function(function: Any, owner: str, bind: Callable[[inspect.Signature], Any], what: str) -> None:
    require(callable(function), f"{function!r} is no function", owner)
    try:
        bind(inspect.signature(function))
    except TypeError as error:
        raise CheckError(f"{function!r} cannot be called with (config, {what}): {error} ({owner})") from error


_ROWS: tuple[tuple[int, dict[str, float]], ...] = (
    (10, {"loss": 0.5, "reward": -2.0}),
    (20, {"loss": 0.25, "reward": 3}),
    (30, {"loss": 1e-12}),
    (40, {"loss": math.nan, "reward": math.inf}),
    (40, {"reward": 7.0}),
    (50, {"loss": 123456.789, "reward": 0.1}),
)


def check_logger(
    make: Callable[[], Logger], *, read: Callable[[], Mapping[str, Mapping[int, float]]] | None = None
) -> Report:
    """Check a logger: it takes every row, leaves the values alone, and can be closed twice.

    Rows are floats and integers, NaN and infinity, lack a name that an earlier one had, and repeat a step.

    Args:
        make: Function that returns a new logger.
        read: Function that returns the records, as value by step by name. Values that are not finite, and those of a
            step that was logged twice, are not compared.

    Returns:
        What was not exercised.

    Raises:
        CheckError: An `AssertionError` with the reason first.

    Example:
        >>> class Memory:
        ...     def __init__(self):
        ...         rows.clear()
        ...     def log_scalars(self, values, step):
        ...         for name, value in values.items():
        ...             rows.setdefault(name, {})[step] = value
        ...     def close(self): ...
        >>> rows = {}
        >>> check_logger(Memory, read=lambda: rows)
        Report(owner='Memory', not_exercised=[])
    """
    unused = make()
    owner = type(unused).__name__
    report = Report(owner)
    missing = [name for name in ("log_scalars", "close") if not callable(getattr(unused, name, None))]
    require(not missing, f"no rl.core.interfaces.Logger: lacks {missing}", owner)
    _call("close before anything was logged", unused.close, owner)
    logger = make()
    for step, row in _ROWS:
        values = dict(row)
        _call(f"log_scalars({row}, step={step})", lambda v=values, s=step: logger.log_scalars(v, s), owner)
        same = {k: repr(v) for k, v in values.items()} == {k: repr(v) for k, v in row.items()}
        require(same, "log_scalars changed the values that it was given", owner)
    _call("close", logger.close, owner)
    _call("close, called a second time,", logger.close, owner)
    if read is None:
        report.skip("what was recorded: pass `read=`")
    else:
        _check_recorded(read(), owner)
    return report.warn()


def _check_recorded(found: Mapping[str, Mapping[int, float]], owner: str) -> None:
    for step, row in _ROWS:
        for name, value in row.items():
            if step == 40 or not math.isfinite(value):
                continue
            got = found.get(name, {}).get(step)
            same = got is not None and math.isclose(got, value, rel_tol=1e-6)
            require(same, f"{name!r} of step {step} was recorded as {got}, it was {value}", owner)


def _call(what: str, function: Callable[[], Any], owner: str) -> None:
    try:
        function()
    except Exception as error:
        raise CheckError(f"{what} raised {type(error).__name__}: {error} ({owner})") from error
