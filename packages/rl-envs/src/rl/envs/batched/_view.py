"""`EnvView`: some environments of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.keys import NestedKey, as_tuple, unwrap
from rl.core.workers import write_leaves
from rl.envs.base._specs import leaf_keys
from rl.envs.batched._members import MembersBase

__all__ = ["EnvView"]


class EnvView(MembersBase):
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
        self._rl.legal_actions = EnvView._legal_actions

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
        if self._rl.masked:  # a legal one
            blank.update(self._parent.full_action_spec.project(blank.select(*self.action_keys)))
        for key in entries:
            given = tensordict.get(key, None)
            if given is not None:
                blank.get(key)[self._index] = given
        held = torch.zeros((*self._parent.batch_size, 1), dtype=torch.bool, device=self.device)
        mask = tensordict.get("_step", None)
        held[self._index] = True if mask is None else mask.reshape((*self.batch_size, 1))
        return self._rows(self._parent.step(blank.set("_step", held)).get("next"))

    def _legal_actions(self) -> dict[NestedKey, Tensor]:
        masks = {key: getattr(self._parent.full_action_spec[key], "mask", None) for key in self.action_keys}
        return {key: mask[self._index] for key, mask in masks.items() if mask is not None}

    def _rows(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._rl.tensordict({key: tensordict.get(key)[self._index] for key in leaf_keys(tensordict)})

    def _set_options(self, options: Mapping[str, Any] | None) -> None:
        self._parent._set_options(options)  # noqa: SLF001  # the documented hook of the class

    def _member_numbers(self) -> Iterable[int]:
        return self._index if isinstance(self._index, list) else [self._index]

    def set_member_seed(self, number: int, seed: int, *, static_seed: bool = False) -> int:
        """Seed one environment of the batch; return the seed for the next one."""
        return self._parent.set_member_seed(number, seed, static_seed=static_seed)

    def __repr__(self) -> str:
        return f"EnvView({self._parent!r}, {self._index})"
