"""`GivenActions`: policy that plays actions which are known beforehand."""

# ruff: noqa: SLF001  # the parts of an environment share its rules, which users do not see

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import RLError, ShapeError
from rl.core.keys import NestedKey, key_str
from rl.core.lowering import Lowered

__all__ = ["GivenActions"]


class GivenActions:
    """Policy that plays given actions, one after the other.

    Args:
        env: the environment, for its action keys.
        actions: ``[*B, T, ...]``, or a TensorDict ``[*B, T]``; or an iterable of the actions of single steps,
            ``[*B, ...]`` or TensorDicts ``[*B]``.
        max_steps: how many are read of an iterable.

    Raises:
        ShapeError: if the batch is not that of the environment.
        RLError: if they are neither, or an iterable of none.
    """

    def __init__(self, env: Any, actions: TensorDictBase | Tensor | Iterable[Any], max_steps: int) -> None:
        self.dim = len(env.batch_size)
        if not isinstance(actions, TensorDictBase | Tensor):
            actions = _stack_actions(actions, self.dim, max_steps, env)
        self.in_keys: list[NestedKey] = []
        self.out_keys: list[NestedKey] = [env.action_key]
        columns: list[Any] = [actions]
        if isinstance(actions, TensorDictBase):
            self.out_keys = list(env.action_keys)
            columns = [actions.get(key, None) for key in self.out_keys]
        for key, column in zip(self.out_keys, columns, strict=True):
            spec = env.full_action_spec[key]
            wanted = [*spec.shape[: self.dim], "T", *spec.shape[self.dim :]]
            shape = None if column is None else [*column.shape[: self.dim], "T", *column.shape[self.dim + 1 :]]
            if column is None or column.ndim <= self.dim or shape != wanted:
                got = "nothing" if column is None else str(list(column.shape))
                raise ShapeError(
                    f"{env._rl.owner}.rollout(actions=...): {key_str(key)} must be {wanted} with T steps, got {got}"
                )
        self.steps = columns[0].shape[self.dim]
        self._rows = zip(*[column.unbind(self.dim) for column in columns], strict=True)

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.update(dict(zip(self.out_keys, next(self._rows), strict=True)))

    def lowered(self) -> Lowered:
        """Return the function of no leaves to the actions."""
        return Lowered(lambda: next(self._rows), self.in_keys, self.out_keys)


def _stack_actions(actions: Any, dim: int, max_steps: int, env: Any) -> Any:
    """The actions of single steps, with the dimension of time behind the batch."""
    owner = f"{env._rl.owner}.rollout(actions=...)"
    steps = list(islice(actions, max_steps)) if isinstance(actions, Iterable) else []
    if not steps or not all(isinstance(one, TensorDictBase | Tensor) for one in steps):
        inside = type(steps[0]).__name__ if steps else "nothing"
        raise RLError(
            f"{owner} takes a tensor or TensorDict with all steps, or an iterable with one for each step, got"
            f" {type(actions).__name__} of {inside}: give tensors"
        )
    try:
        return torch.stack(steps, dim)
    except (RuntimeError, IndexError) as error:
        shapes = sorted({str(list(one.shape)) for one in steps})
        raise ShapeError(f"{owner}: actions of single steps differ or lack the batch, they are {shapes}") from error
