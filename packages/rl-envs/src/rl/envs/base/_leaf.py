"""`LeafEnvBase`: base class of environments that are written on tensors by key, and their fast form."""

# ruff: noqa: SLF001  # the parts of an environment share its rules, which users do not see

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError, RLError, ShapeError
from rl.core.interfaces import LeafEnv, Leaves
from rl.core.keys import key_str
from rl.core.mdp import merge_reset
from rl.envs.base._base import PUBLIC_FORM, EnvBase
from rl.envs.base._checks import check_action
from rl.envs.base._rules import partial_root
from rl.envs.base._specs import FLAGS, leaf_keys

__all__ = ["LeafCalls", "LeafEnvBase", "LeafForm", "can_write_rows", "reset_where", "write_rows"]


def _no_rows(current: Leaves, mask: Tensor) -> Leaves | None:
    del current, mask


def can_write_rows(current: Mapping[Any, Tensor], keys: Iterable[Any]) -> bool:
    """Whether `write_rows` can write `keys`: the entries are on the CPU and need no gradient.

    Raises:
        ContractError: if one is missing.
    """
    for key in keys:
        if key not in current:
            raise ContractError(
                f"a partial reset reads {key_str(key)} of what is not reset, which is not in the input (keys:"
                f" {list(current)}); pass the data of the last step along with the mask"
            )
    return all(current[key].is_cpu and not current[key].requires_grad for key in keys)


def write_rows(current: Mapping[Any, Tensor], mask: Tensor, chosen: Any, fresh: Mapping[Any, Any]) -> Leaves:
    """The root entries after a partial reset: copies of those before it, with the rows of the new episodes.

    Args:
        current: entries before the reset, ``[*B, ...]``.
        mask: bool ``[*B, 1]``, the elements that are reset; their done flags become false.
        chosen: indices of these elements in the flattened batch.
        fresh: entries of their new episodes, arrays ``[len(chosen), ...]``; values are not read if `chosen` is empty.
    """
    kept = ~mask
    leaves: Leaves = {name: current[name] & kept for name in FLAGS}
    for key, rows in fresh.items():
        array = np.array(current[key].numpy(), order="C")
        if len(chosen):
            array.reshape(mask.numel(), *rows.shape[1:])[chosen] = rows
        leaves[key] = torch.from_numpy(array)
    return leaves


@dataclass(frozen=True)
class LeafCalls:
    """The functions of a leaf form; see `LeafEnvBase` for each.

    Args:
        reset: ``_reset_leaves``.
        step: ``_step_leaves``.
        reset_rows: ``_reset_rows``.
    """

    reset: Callable[[Tensor | None], Leaves]
    step: Callable[[Leaves], Leaves]
    reset_rows: Callable[[Leaves, Tensor], Leaves | None] = _no_rows


class LeafEnvBase(EnvBase, final=("_reset", "_step", *PUBLIC_FORM)):
    """Base class of environments that are written on tensors by flat key, without TensorDicts.

    The constructor and the specs are those of `EnvBase`. The author writes two methods, which return fresh tensors:

    - ``_reset_leaves(mask)`` returns the root entries of new episodes, done flags included. `mask` (bool
      ``[*B, 1]``) marks the elements of a partial reset, None means all; rows outside the mask are ignored.
    - ``_step_leaves(root)`` returns the entries under ``next``: observations, rewards and done flags.

    `reset`, `step` and everything else that takes TensorDicts is derived from them and final: a subclass that
    overrides it raises an RLError when the class is created. Collectors call the two methods without building a
    TensorDict.

    Three methods are optional:

    - ``_set_state_leaves(state)`` returns the root entries of episodes that begin in `state`, the entries of
      `state_spec` by key; done flags may be left out. ``reset(td, set_state=True)`` calls it.

    - ``_reset_rows(current, mask)`` returns all root entries after a partial reset, or None for the general path
      (``_reset_leaves``, then a merge with `current`). It must not change the tensors of `current`.
    - ``_step_together(envs)``, a class method, returns `LeafCalls` that step several environments of the class at
      once, as batch ``[n, *B]``, or None. `SerialEnv` calls it.

    Args:
        batch_size: number of elements in each batch dimension.
        device: device of all tensors; that of the simulator if None.
        debug: compare every reset and step with the specs, not only the first.

    Raises:
        RLError: when a subclass is created that overrides the derived form.

    Example:
        >>> from rl.core.specs import Bounded, Composite, Unbounded
        >>> class Walk(LeafEnvBase):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.observation_spec = Composite(observation=Unbounded(1))
        ...         self.action_spec = Bounded(-1, 1, shape=(1,))
        ...     def _reset_leaves(self, mask):
        ...         over = torch.zeros(1, dtype=torch.bool)
        ...         return {"observation": torch.zeros(1), "done": over, "terminated": over}
        ...     def _step_leaves(self, root):
        ...         place = root["observation"] + root["action"]
        ...         over = place.abs() > 3
        ...         return {"observation": place, "reward": -place.abs(), "done": over, "terminated": over}
        >>> Walk().rollout(5)["next", "reward"].shape
        torch.Size([5, 1])
    """

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        del mask
        raise RLError(f"{type(self).__name__} does not implement _reset_leaves(mask)")

    def _step_leaves(self, root: Leaves) -> Leaves:
        del root
        raise RLError(f"{type(self).__name__} does not implement _step_leaves(root)")

    def _reset_rows(self, current: Leaves, mask: Tensor) -> Leaves | None:
        return _no_rows(current, mask)

    def _set_state_leaves(self, state: Leaves) -> Leaves:
        del state
        raise RLError(
            f"{type(self).__name__} cannot begin in a given state: it implements no _set_state_leaves(state). Continue"
            " from a saved one with load_state_dict(state) instead"
        )

    @classmethod
    def _step_together(cls, envs: Sequence[Any]) -> LeafCalls | None:
        del envs

    def lowered(self) -> LeafEnv | None:
        """Return the leaf form."""
        step = self._rl.compiled or self._step_leaves
        return LeafForm(self, LeafCalls(self._reset_leaves, step, self._reset_rows))

    def compile(self, **kwargs: Any) -> Self:
        self._rl.compile(torch.compile(self._step_leaves, **kwargs), kwargs)
        return self

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        return self._rl.tensordict(self._reset_leaves(None if tensordict is None else tensordict.get("_reset")))

    def _set_state(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._rl.tensordict(self._set_state_leaves({key: tensordict.get(key) for key in self.state_keys}))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self._rl.compiled is None:
            leaves: Any = self._step_leaves(tensordict)  # pyright: ignore[reportArgumentType]  # a mapping too
        else:
            leaves = self._rl.compiled({key: tensordict.get(key) for key in leaf_keys(tensordict)})
        return self._rl.tensordict(leaves)


class LeafForm:
    """Leaf form of an environment; see `rl.core.interfaces.LeafEnv`.

    The first reset and the first step are compared with the specs; each one if the environment's `debug` is true.

    Args:
        env: the environment, for its specs.
        calls: functions that reset and step it.
    """

    __slots__ = ("_env", "_flag_shape", "_reset", "_rows", "_rules", "_step", "batch_size")

    def __init__(self, env: EnvBase, calls: LeafCalls) -> None:
        self._env, self._rules = env, env._rl
        self._reset, self._step, self._rows = calls.reset, calls.step, calls.reset_rows
        self.batch_size: torch.Size = env.batch_size
        done = env.full_done_spec.get("done", None)
        self._flag_shape = torch.Size((*self.batch_size, 1)) if done is None else done.shape

    def reset_leaves(self, current: Leaves | None = None, mask: Tensor | None = None) -> Leaves:
        """Return the root entries after a reset of all elements, or of those where `mask` is true.

        Args:
            current: root entries of the elements that are not reset; needed with `mask`.
            mask: bool ``[*B, 1]``, the elements to reset; all if None.

        Raises:
            RLError: if there is a mask and no `current`, or the environment is closed.
            ShapeError: if the mask is not bool, or has not the shape of ``done``.
            ContractError: if `current` lacks an entry.
        """
        rules = self._rules
        rules.check_open()
        if mask is not None and current is None:
            raise RLError(f"{rules.owner}: reset_leaves(mask=...) needs current=, the entries of the others")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != self._flag_shape):
            raise ShapeError(
                f"{rules.owner}: reset_leaves was given a mask of {mask.dtype} {tuple(mask.shape)}; it must be"
                f" torch.bool {tuple(self._flag_shape)}, as 'done'"
            )
        checked = rules.reset_checked and not self._env.debug
        leaves = self._merge_reset(current, mask, checked=checked)
        if rules.masked or mask is None or not checked:
            rules.update_masks(self._env, look=True)
        return leaves

    def _merge_reset(self, current: Leaves | None, mask: Tensor | None, *, checked: bool) -> Leaves:
        rules = self._rules
        if checked and mask is not None and current is not None and not rules.completes:
            rows = self._rows(current, mask)
            if rows is not None:
                return rows
        fresh = self._reset(mask)
        if not checked:
            rules.completes = any(key not in fresh for key in rules.flags.keys)
        if rules.completes:
            rules.flags.clear(fresh, self._env.full_done_spec)
        if not checked:
            rules.check_reset(fresh, None if mask is None else {(): mask})
        # A device with a queue is not asked: the answer would wait for all work before it.
        if mask is None or current is None or (not mask.is_cuda and bool(mask.all())):
            return fresh
        return merge_reset(current, fresh, {(): mask})

    def step_leaves(self, root: Leaves) -> Leaves:
        """Return the entries that a step writes under ``next``, keyed without the ``next``."""
        rules = self._rules
        if rules.step_checked and not self._env.debug:
            try:
                outcome = self._step(root)
            except Exception:
                check_action(root, self._env.full_action_spec, owner=rules.owner)  # says more if that is the cause
                raise
            if rules.masked:
                rules.update_masks(self._env, look=False)
            return self._complete(outcome) if rules.completes else outcome
        check_action(root, self._env.full_action_spec, owner=rules.owner)
        outcome = self._step(root)
        rules.completes = any(key not in outcome for key in rules.flags.keys)
        if rules.completes:
            outcome = self._complete(outcome)
        rules.check_step(outcome)
        rules.update_masks(self._env, look=True)
        return outcome

    def _complete(self, outcome: Leaves) -> Leaves:
        return self._rules.flags.complete(outcome, self._env.full_done_spec, self._rules.owner)


def reset_where(env: Any, leaf: LeafEnv) -> Callable[[Tensor | None], Leaves]:
    """Return `leaf.reset_leaves` as a function of the mask alone, whose rows outside the mask mean nothing.

    Args:
        env: the environment of `leaf`.
        leaf: a leaf form.
    """
    blank: Leaves = {}

    def reset(mask: Tensor | None) -> Leaves:
        if mask is None:
            return leaf.reset_leaves()
        if not blank:
            zeros = partial_root(env, TensorDict({}, env.batch_size))
            blank.update({key: zeros.get(key) for key in leaf_keys(zeros)})
        return leaf.reset_leaves(blank, mask)

    return reset
