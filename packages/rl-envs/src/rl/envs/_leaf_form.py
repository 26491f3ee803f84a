"""The leaf form of an environment: plain calls on tensors by flat key."""

# ruff: noqa: SLF001  # an environment, its parts and its transforms call each other's hooks, which users do not

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl.core.errors import RLError
from rl.core.interfaces import Leaves
from rl.core.mdp import merge_reset

__all__ = ["LeafForm"]


class LeafForm:
    """What `EnvBase.lowered` returns; see `rl.core.interfaces.LeafEnv`.

    The first reset and the first step are compared with the specs, as in the TensorDict form; each one if the
    environment's `debug` is true.

    Args:
        env: has ``_reset_leaves`` and ``_step_leaves``; its ``_reset_rows``, if not None, resets some elements at less
            cost.
    """

    __slots__ = ("_env", "_rows", "_step", "batch_size")

    def __init__(self, env: Any) -> None:
        self._env = env
        self._step = env._step_leaves
        self._rows = env._reset_rows
        self.batch_size: torch.Size = env.batch_size

    def reset_leaves(self, current: Leaves | None = None, mask: Tensor | None = None) -> Leaves:
        """The root entries after a reset of all elements, or of those where `mask` (bool ``[*B, 1]``) is true.

        Args:
            current: root entries of the elements that are not reset; needed with `mask`.
            mask: the elements to reset; all if None.

        Raises:
            RLError: if there is a mask and no `current`, or the environment is closed.
        """
        env = self._env
        if env.is_closed:
            raise RLError(f"{env!r} is closed; make a new one")
        if mask is not None and current is None:
            raise RLError(f"{type(env).__name__}: reset_leaves(mask=...) needs current=, the entries of the others")
        if self._rows is not None and mask is not None and current is not None and env._reset_checked and not env.debug:
            return self._rows(current, mask)
        fresh = env._reset_leaves(mask)
        if env.debug or not env._reset_checked:
            env._check_reset(fresh)
        if mask is None or current is None or bool(mask.all()):
            return fresh
        return merge_reset(current, fresh, {(): mask})

    def step_leaves(self, root: Leaves) -> Leaves:
        """What a step writes under ``next``, keyed without the ``next``."""
        env = self._env
        if env._step_checked and not env.debug:
            try:
                return self._step(root)
            except Exception:
                env._check_leaf_action(root)  # says more if that is why
                raise
        env._check_leaf_action(root)
        outcome = self._step(root)
        env._check_step(outcome)
        return outcome
