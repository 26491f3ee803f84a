"""`EnvView`: some environments of a batch."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rl.core.errors import SpecError
from rl.core.keys import as_tuple, unwrap
from rl.core.specs import set_group_sizes
from rl.core.workers import write_leaves
from rl.envs.base._base import EnvBase
from rl.envs.base._specs import leaf_keys
from rl.envs.batched._members import groups_of

__all__ = ["EnvView"]


class EnvView(EnvBase):
    """Some environments of a batched one, whose resets and steps leave the others as they are.

    Args:
        parent: a `SerialEnv` or `ParallelEnv`, which must stay open; closing the view does not close it.
        index: an integer, which leaves out the dimension, or a slice or list of integers.

    Example:
        >>> from rl.envs import PendulumEnv, SerialEnv
        >>> SerialEnv(3, PendulumEnv)[1:].rollout(4).batch_size
        torch.Size([2, 4])
    """

    def __init__(self, parent: Any, index: Any) -> None:
        chosen = torch.arange(parent.batch_size[0])[index]
        if chosen.ndim > 1 or not chosen.numel():
            raise SpecError(f"{type(parent).__name__}[{index}] has no environment; there are {parent.batch_size[0]}")
        super().__init__(batch_size=(*chosen.shape, *parent.batch_size[1:]), device=parent.device)
        self._parent, self._index = parent, chosen.tolist() if chosen.ndim else int(chosen)
        self.observation_spec = parent.observation_spec_unbatched
        self.action_spec = parent.full_action_spec_unbatched
        self.reward_spec = parent.full_reward_spec_unbatched
        self.done_spec = parent.done_spec_unbatched
        self.state_spec = parent.state_spec_unbatched

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        root = self._parent.observation_spec.zero().update(self._parent.full_done_spec.zero())
        for key in {*self._parent.reset_keys, "_reset"}:
            done = unwrap((*as_tuple(key)[:-1], "done"))
            shape = self._parent.full_done_spec[done].shape if done in self.done_keys else (*self._parent.batch_size, 1)
            mask = torch.zeros(shape, dtype=torch.bool, device=self.device)
            given = None if tensordict is None else tensordict.get(key, None)
            mask[self._index] = True if given is None else given
            root.set(key, mask)
        fresh = self._parent.reset(root)
        return self._rows(fresh)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        blank = self._parent.observation_spec.zero().update(self._parent.full_done_spec.zero())
        blank.update(self._parent.full_action_spec.zero()).update(self._parent.full_state_spec.zero())
        entries = {key: blank.get(key) for key in leaf_keys(blank)}
        chosen = {key: leaf[self._index] for key, leaf in entries.items()}
        write_leaves(chosen, tensordict, "EnvView.step")
        for key, leaf in entries.items():
            given = tensordict.get(key, None)
            if given is not None:
                leaf[:] = given[0] if isinstance(self._index, list) else given  # others need an action too
                leaf[self._index] = given
        held = torch.zeros((*self._parent.batch_size, 1), dtype=torch.bool, device=self.device)
        mask = tensordict.get("_step", None)
        held[self._index] = True if mask is None else mask.reshape((*self.batch_size, 1))
        return self._rows(self._parent.step(blank.set("_step", held)).get("next"))

    def _rows(self, tensordict: TensorDictBase) -> TensorDictBase:
        leaves: Any = {key: tensordict.get(key)[self._index] for key in leaf_keys(tensordict)}
        out = TensorDict(leaves, batch_size=self.batch_size, device=self.device)
        set_group_sizes(out, groups_of(self))
        return out

    def set_seed(self, seed: int) -> int:
        """Seed each environment with the seed that the one before it returned."""
        for number in self._index if isinstance(self._index, list) else [self._index]:
            seed = self._parent.set_member_seed(number, seed)
        return seed

    def __repr__(self) -> str:
        return f"EnvView({self._parent!r}, {self._index})"
