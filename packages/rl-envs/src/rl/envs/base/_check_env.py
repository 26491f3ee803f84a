"""`check_env`: what an environment writes, key by key, and all of its faults at once."""

# ruff: noqa: T201  # it prints

from __future__ import annotations

from importlib import import_module
from typing import Any

from rl.core.errors import ArgumentError, MissingExtraError, SpecError
from rl.core.interfaces import Env

_LIMIT = 46
"""Characters of a column."""


def check_env(env: Env, *, seed: int = 0, steps: int = 200) -> None:
    """Check an environment, print what it writes key by key, and raise one error with all faults.

    The judgement is that of `rl.testing.examine_env`: entries against the specs, done flags, inputs, seeds, last
    observations, partial resets. What could not be judged is said too. The environment is left in the middle of an
    episode. Environments of a batch whose specs differ are checked one after the other. `rl.testing.check_env` checks
    more, given a function that creates environments.

    Args:
        env: Any environment of the `rl.core.interfaces.Env` protocol.
        seed: Seed for `set_seed`.
        steps: Number of random steps.

    Raises:
        SpecError: With one line for each fault.
        ArgumentError: If `env` is a class, or `steps` is below 1.
        MissingExtraError: If rl-testing is not installed.

    Example:
        >>> from rl.envs import CartPoleEnv
        >>> check_env(CartPoleEnv(batch_size=[2]), steps=50)
        CartPoleEnv, batch [2], 50 random steps
        key         | expected ...
    """
    try:
        examine_env = import_module("rl.testing").examine_env
    except ModuleNotFoundError as error:
        if error.name != "rl.testing":
            raise
        raise MissingExtraError("check_env needs rl-testing, which is not installed: pip install rl-testing") from error
    if isinstance(env, type):
        raise ArgumentError(f"expected an environment, got the class {env.__name__}: pass {env.__name__}(...)")
    checked: Any = env
    rules = getattr(checked, "_rl", None)
    if rules is not None and rules.members:  # each one by itself, as a part of the batch
        for number in range(len(rules.members)):
            check_env(checked[number], seed=seed, steps=steps)
        return
    debug = getattr(checked, "debug", None)
    if rules is not None:  # its own comparison with its specs stops at the first fault
        checked.debug, rules.reset_checked, rules.step_checked = False, True, True
    try:
        rows = examine_env(env, seed=seed, steps=steps)
    finally:
        if rules is not None:
            checked.debug = debug
    name = type(env).__name__ if rules is None else rules.owner
    table = [("key", "expected", "got", "verdict"), *(row[:4] for row in rows)]
    widths = [min(_LIMIT, max(len(row[column]) for row in table)) for column in range(4)]
    print(f"{name}, batch {list(getattr(env, 'batch_size', []))}, {steps} random steps")
    for row in table:
        cells = [cell if len(cell) <= _LIMIT else f"{cell[: _LIMIT - 3]}..." for cell in row]
        print(" | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    faults = [f"  {row.name}: {row.fault}" for row in rows if row.fault is not None]
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise SpecError(f"{name} has {count}:\n" + "\n".join(faults))
