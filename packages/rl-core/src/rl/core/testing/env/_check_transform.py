"""`check_transform`: whether a transform keeps the rules of transforms."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from tensordict import TensorDictBase

from rl.core.interfaces import Env, Transform
from rl.core.testing._report import Report, require
from rl.core.testing.env._check_env import check_env
from rl.core.testing.env._transform_copies import check_copies_in_env, check_copies_on_batch, copy_of
from rl.core.testing.env._transform_on_batch import check_called_as_in_env, check_on_batch

__all__ = ["check_transform"]


def check_transform(
    transform: Transform,
    batch: TensorDictBase | None = None,
    *,
    wrap: Callable[[Any], Env] | None = None,
    nested: Transform | None = None,
    seed: int = 0,
    repeatable: bool = True,
    picklable: bool = True,
    compiles: bool = True,
    time_limit: int | None = None,
) -> Report:
    """Check a transform on a batch, within an environment, or both.

    On a batch, it

    - returns a TensorDict of the same batch size, and changes no tensor of its input in place;
    - replaces only entries that its ``contract`` or ``out_keys`` declare;
    - gives the same result for the same input, for a batch with one dimension more, compiled by
      ``torch.compile(fullgraph=True)``, and with nested keys;
    - gives the input back through ``inv``, for keys that are in ``in_keys`` and ``in_keys_inv``;
    - runs on a CUDA device, where there is one;
    - if it has neither ``inv`` nor ``transform_specs``: changes the entries under ``next`` also when it is called as in
      an environment, with the root and with ``next`` by themselves. Without `wrap` this is only reported.

    Within an environment, that environment passes `check_env`: data match the specs that the transform makes,
    observations restart with partial resets. On both, a clone, a deep copy, a pickle, and a new one with its
    ``state_dict`` continue as the transform does.

    Args:
        transform: any callable from TensorDict to TensorDict. Copies of it are used, from its ``clone()`` if it has
            one.
        batch: a batch on which it can run.
        wrap: puts a copy of the transform around an environment, for example
            ``lambda t: TransformedEnv(PendulumEnv(), t)``. A batched environment is needed for partial resets.
        nested: the same transform with ``("nested", key)`` in place of each of its keys; it runs on a copy of `batch`
            with these keys.
        seed: for the environment.
        repeatable: false for a transform that is random, or keeps a state, on purpose; its copies are compared if it
            has a ``state_dict``.
        picklable: false for a transform that holds a function without a name.
        compiles: false for a transform of a batch that is not for compiled code, because it reads values for example.
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
    require(nested is None or batch is not None, "needs a batch for the transform nested=", "check_transform")
    copied = not isinstance(transform, FunctionType) and (repeatable or hasattr(transform, "state_dict"))
    if batch is not None:
        check_on_batch(
            lambda: copy_of(transform), batch, report, nested=nested, repeatable=repeatable, compiles=compiles
        )
        check_called_as_in_env(copy_of(transform), batch, report, in_env=wrap is not None)
        if copied:
            check_copies_on_batch(transform, batch, report, picklable=picklable)
    report.warn()
    if wrap is not None:
        inner = check_env(lambda: wrap(copy_of(transform)), seed=seed, time_limit=time_limit)
        report.not_exercised += inner.not_exercised
        if copied:
            check_copies_in_env(transform, wrap, seed, report, picklable=picklable)
    return report
