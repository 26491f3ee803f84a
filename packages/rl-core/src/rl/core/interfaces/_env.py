"""Environments, their leaf form, and transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.keys import NestedKey

if TYPE_CHECKING:
    from rl.core.specs import Composite

__all__ = ["Env", "LeafEnv", "Leaves", "Transform", "missing_env_members"]

Leaves = dict[NestedKey, Tensor]
"""Tensors by flat key: a nested key is a tuple, an un-nested one a string, never a tuple of one."""


class LeafEnv(Protocol):
    """An environment as plain calls on leaves.

    Every tensor that it returns is fresh: the caller keeps it without copying.
    """

    batch_size: torch.Size

    def reset_leaves(self, current: Leaves | None = None, mask: Tensor | None = None) -> Leaves:
        """The root entries (observations, done flags, state) after a reset.

        Args:
            current: root entries of the elements that are not reset; needed with `mask`.
            mask: bool ``[*B, 1]``, the elements to reset; all of them if None.
        """
        ...

    def step_leaves(self, root: Leaves) -> Leaves:
        """What a step writes under ``next``, keyed without the ``next``: observations, reward, flags."""
        ...


@runtime_checkable
class Env(Protocol):
    """An environment: specs, and steps from TensorDict to TensorDict."""

    batch_size: torch.Size

    @property
    def observation_spec(self) -> Composite:
        """What resets and steps write besides rewards and done flags, with the batch."""
        ...

    @property
    def full_action_spec(self) -> Composite:
        """All actions, keyed as `step` reads them."""
        ...

    @property
    def full_reward_spec(self) -> Composite:
        """All rewards, keyed as `step` writes them under ``next``."""
        ...

    @property
    def full_done_spec(self) -> Composite:
        """All done flags: ``done``, ``terminated``, and ``truncated`` where it exists."""
        ...

    def reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Start episodes: all, or those marked in ``_reset`` (bool ``[*B, 1]``)."""
        ...

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Read the action at the root, write the outcome under ``next``, return the same TensorDict."""
        ...

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """`step`, and the root of the following step, in which finished episodes have been reset."""
        ...

    def set_seed(self, seed: int) -> int:
        """Make what follows repeatable; returns the seed for the next environment."""
        ...

    def close(self) -> None:
        """Release what the environment holds. May be called twice."""
        ...


def missing_env_members(env: object) -> list[str]:
    """Return the members of `Env` that an object lacks, in the order of the protocol; empty for an environment.

    Example:
        >>> missing_env_members(object())[:3]
        ['batch_size', 'observation_spec', 'full_action_spec']
    """
    members = [name for name in (*Env.__annotations__, *vars(Env)) if not name.startswith("_")]
    return [name for name in members if not hasattr(env, name)]


class Transform(Protocol):
    """Any callable from TensorDict to TensorDict.

    An environment calls it with the entries of a reset, and after a step with those that the step wrote, *without*
    ``next``: there the reward is ``"reward"``, and missing after a reset. A replay buffer calls it with a batch, where
    the reward is ``("next", "reward")``.

    These methods are optional, and looked up by name. A replay buffer calls them:

    - ``inv(td)``: the other direction, called on each batch before it is written. Returns the rows to write, None or
      an empty TensorDict if there are none. It changes no tensor of `td` in place;
    - ``has_inverse()``: false if ``inv`` changes nothing, so that it is not called;
    - ``state_dict()``, ``load_state_dict(state)``: of a transform with ``inv``, its memory as tensors and plain
      containers; part of the state of the buffer, and restored if a batch cannot be written;
    - ``empty()``: the buffer was emptied: discard rows that are held back.

    Example:
        >>> from tensordict import TensorDict
        >>> class Half:  # stores x in half precision
        ...     def __call__(self, td):
        ...         return td.set("x", td["x"].float())
        ...
        ...     def inv(self, td):
        ...         return td.copy().set("x", td["x"].half())
        >>> Half().inv(TensorDict(x=torch.ones(3), batch_size=[3]))["x"].dtype
        torch.float16
    """

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase: ...
