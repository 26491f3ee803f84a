"""Whether a transform keeps to what those who call it rely on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl.core.interfaces import Env, Transform
from rl.core.keys import key_str
from rl.core.testing._env import check_env, same_values

__all__ = ["check_transform"]


def check_transform(
    transform: Transform,
    batch: TensorDictBase | None = None,
    *,
    wrap: Callable[[Any], Env] | None = None,
    seed: int = 0,
) -> None:
    """Check a transform on a batch, within an environment, or both.

    On a batch: it returns a TensorDict of the same batch size, and changes no tensor of its input in place. Within an
    environment: that environment passes `check_env`, so its specs are what the transform makes of them.

    Args:
        transform: any callable from TensorDict to TensorDict. Copies of it are used, from its ``clone()`` if it has
            one.
        batch: a batch on which it can run.
        wrap: puts a copy of the transform around an environment, for example
            ``lambda t: TransformedEnv(PendulumEnv(), t)``.
        seed: for the environment.

    Raises:
        AssertionError: with a sentence that says what is wrong.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> check_transform(lambda td: td.set("twice", 2 * td["x"]), TensorDict(x=torch.ones(3), batch_size=[3]))
    """
    assert batch is not None or wrap is not None, "check_transform needs a batch, or wrap= with an environment"
    if batch is not None:
        _check_on_batch(_copy(transform), batch)
    if wrap is not None:
        check_env(lambda: wrap(_copy(transform)), seed=seed)


def _copy(transform: Any) -> Any:
    clone = getattr(transform, "clone", None)
    return clone() if clone is not None else copy.deepcopy(transform)


def _check_on_batch(transform: Any, batch: TensorDictBase) -> None:
    who = getattr(transform, "__name__", type(transform).__name__)
    before = batch.clone()
    held = dict(batch.items(include_nested=True, leaves_only=True))
    out = transform(batch.copy())
    assert isinstance(out, TensorDictBase), f"{who} must return a TensorDict, got {type(out).__name__}"
    assert out.batch_size == batch.batch_size, (
        f"{who} returned batch size {tuple(out.batch_size)} for an input of {tuple(batch.batch_size)}"
    )
    for key, value in held.items():
        if isinstance(value, Tensor):
            then = before.get(key)
            same = same_values(value, then)
            assert same, f"{who} changed {key_str(key)} of its input in place: others hold that tensor too"
