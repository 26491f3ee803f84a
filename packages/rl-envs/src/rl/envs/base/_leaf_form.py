"""The leaf form of an environment: plain calls on tensors by flat key."""

# ruff: noqa: SLF001  # an environment, its parts and its transforms call each other's hooks, which users do not

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl.core.errors import RLError, ShapeError
from rl.core.interfaces import Leaves
from rl.core.mdp import merge_reset
from rl.envs.base._checks import check_action, refuse_closed, refuse_done

__all__ = ["LeafForm"]


class LeafForm:
    """What `EnvBase.lowered` returns; see `rl.core.interfaces.LeafEnv`.

    The first reset and the first step are compared with the specs, as in the TensorDict form; each one if the
    environment's `debug` is true.

    Args:
        env: has ``_reset_leaves`` and ``_step_leaves``; its ``_rl_reset_rows``, if not None, resets some elements at
            less cost.
    """

    __slots__ = ("_env", "_flag_shape", "_rows", "_step", "batch_size")

    def __init__(self, env: Any) -> None:
        self._env = env
        self._step = env._step_leaves
        self._rows = env._rl_reset_rows
        self.batch_size: torch.Size = env.batch_size
        done = env.full_done_spec.get("done", None)
        self._flag_shape = torch.Size((*self.batch_size, 1)) if done is None else done.shape

    def reset_leaves(self, current: Leaves | None = None, mask: Tensor | None = None) -> Leaves:
        """The root entries after a reset of all elements, or of those where `mask` (bool ``[*B, 1]``) is true.

        Args:
            current: root entries of the elements that are not reset; needed with `mask`.
            mask: the elements to reset; all if None.

        Raises:
            RLError: if there is a mask and no `current`, or the environment is closed.
            ShapeError: if the mask is not bool, or has not the shape of ``done``.
            ContractError: if `current` lacks an entry.
        """
        env = self._env
        refuse_closed(env)
        if mask is not None and current is None:
            raise RLError(f"{env._rl_name}: reset_leaves(mask=...) needs current=, the entries of the others")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != self._flag_shape):
            raise ShapeError(
                f"{env._rl_name}: reset_leaves was given a mask of {mask.dtype} {tuple(mask.shape)}; it must be"
                f" torch.bool {tuple(self._flag_shape)}, as 'done'"
            )
        rows = None if env.debug or not env._rl_reset_checked else self._rows
        if rows is not None and mask is not None and current is not None:
            return rows(current, mask)
        fresh = env._reset_leaves(mask)
        if env.debug or not env._rl_reset_checked:
            refuse_done(fresh, env._rl_flags.done_keys, None if mask is None else {(): mask}, env._rl_name)
            env._rl_check_reset(fresh)
        if mask is None or current is None or bool(mask.all()):
            return fresh
        return merge_reset(current, fresh, {(): mask})

    def step_leaves(self, root: Leaves) -> Leaves:
        """What a step writes under ``next``, keyed without the ``next``."""
        env = self._env
        if env._rl_step_checked and not env.debug:
            try:
                return self._step(root)
            except Exception:
                check_action(root, env.full_action_spec, who=env._rl_name)  # says more if that is why
                raise
        check_action(root, env.full_action_spec, who=env._rl_name)
        outcome = self._step(root)
        env._rl_check_step(outcome)
        return outcome
