"""`check_transform`: whether a transform keeps the rules of transforms."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl.core.contract import Contract
from rl.core.interfaces import Env, Transform
from rl.core.keys import NestedKey, key_str, leaf_keys, next_key
from rl.core.testing._contracts import Tried, require_kept
from rl.core.testing._report import Report, require, require_same, same_values
from rl.core.testing.env._check_env import check_env

__all__ = ["check_transform"]


def check_transform(
    transform: Transform,
    batch: TensorDictBase | None = None,
    *,
    wrap: Callable[[Any], Env] | None = None,
    seed: int = 0,
    repeatable: bool = True,
    time_limit: int | None = None,
) -> Report:
    """Check a transform on a batch, within an environment, or both.

    On a batch: it returns a TensorDict of the same batch size, changes no tensor of its input in place, replaces only
    entries that its ``contract`` or ``out_keys`` declare, and gives the same result for the same input. Within an
    environment: that environment passes `check_env`, so its specs are what the transform makes of them.

    Args:
        transform: any callable from TensorDict to TensorDict. Copies of it are used, from its ``clone()`` if it has
            one.
        batch: a batch on which it can run.
        wrap: puts a copy of the transform around an environment, for example
            ``lambda t: TransformedEnv(PendulumEnv(), t)``.
        seed: for the environment.
        repeatable: false for a transform that is random, or keeps a state, on purpose.
        time_limit: see `check_env`.

    Returns:
        What was not exercised.

    Raises:
        CheckError: an `AssertionError` with the reason first.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> check_transform(lambda td: td.set("twice", 2 * td["x"]), TensorDict(x=torch.ones(3), batch_size=[3]))
        Report(owner='<lambda>', not_exercised=[])
    """
    report = Report(getattr(transform, "__name__", type(transform).__name__))
    require(batch is not None or wrap is not None, "needs a batch, or wrap= with an environment", "check_transform")
    if batch is not None:
        _check_on_batch(_copy(transform), batch, report, repeatable=repeatable)
    report.warn()
    if wrap is not None:
        inner = check_env(lambda: wrap(_copy(transform)), seed=seed, time_limit=time_limit)
        report.not_exercised += inner.not_exercised
    return report


def _copy(transform: Any) -> Any:
    clone = getattr(transform, "clone", None)
    return clone() if clone is not None else copy.deepcopy(transform)


def _check_on_batch(transform: Any, batch: TensorDictBase, report: Report, *, repeatable: bool) -> None:
    owner = report.owner
    contract = getattr(transform, "contract", None)
    if isinstance(contract, Contract):
        Tried(_copy(transform), contract, batch, owner)  # raises if it reads more than it declares
    before = batch.clone()
    held = dict(batch.items(include_nested=True, leaves_only=True))
    out = transform(batch.copy())
    require(isinstance(out, TensorDictBase), f"must return a TensorDict, got {type(out).__name__}", owner)
    require(
        out.batch_size == batch.batch_size,
        f"batch size {tuple(out.batch_size)} was returned for an input of {tuple(batch.batch_size)}",
        owner,
    )
    for key, value in held.items():
        if isinstance(value, Tensor):
            same = same_values(value, before.get(key))
            require(same, f"changed {key_str(key)} of its input in place: others hold that tensor too", owner)
    _check_replaced(transform, before, out, report)
    if repeatable:
        again = transform(batch.copy())
        reason = "the same input gives two results: the transform is random or keeps a state (if on purpose, give"
        require_same(out, again, f"{reason} `repeatable=False`)", owner)


def _check_replaced(transform: Any, before: TensorDictBase, out: TensorDictBase, report: Report) -> None:
    contract = getattr(transform, "contract", None)
    declared: list[NestedKey] = list(
        contract.out_keys if isinstance(contract, Contract) else getattr(transform, "out_keys", ())
    )
    if declared:
        require_kept(before, out, [*declared, *map(next_key, declared)], report.owner)
        return
    present = leaf_keys(out)
    replaced = [key for key in leaf_keys(before) if key in present and not same_values(before.get(key), out.get(key))]
    if replaced:
        report.skip(f"whether {replaced} may be replaced: the transform has no contract and no out_keys")
