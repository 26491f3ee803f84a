"""Environments of any make as one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase

from rl.core.interfaces import Env
from rl.core.keys import RESET
from rl.core.specs import Composite

__all__ = ["SideBySide"]


class SideBySide:
    """Steps environments one after the other; they need no more than the protocol `rl.core.interfaces.Env`.

    Its batch is ``[n, *B]``, where ``[*B]`` is that of each environment.

    Args:
        envs: with equal specs, at least one.
    """

    def __init__(self, envs: Sequence[Env]) -> None:
        self.envs = list(envs)
        first = self.envs[0]
        self.batch_size = torch.Size([len(self.envs), *first.batch_size])
        self.observation_spec = self._batch(first.observation_spec)
        self.full_action_spec = self._batch(first.full_action_spec)
        self.full_reward_spec = self._batch(first.full_reward_spec)
        self.full_done_spec = self._batch(first.full_done_spec)
        if all(getattr(env, "state_dict", None) is not None for env in self.envs):
            self.state_dict = self._state  # its absence says that there is no exact continuation

    def _batch(self, spec: Composite) -> Composite:
        return spec.expand(len(self.envs), *spec.shape)

    def reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Start episodes: all, or those that ``_reset`` marks."""
        mask = None if tensordict is None else tensordict.get(RESET, None)
        rows: list[TensorDictBase] = []
        for i, env in enumerate(self.envs):
            if tensordict is None or mask is None:
                rows.append(env.reset())
            elif mask[i].any():
                rows.append(env.reset(tensordict[i]))
            else:
                rows.append(tensordict[i].exclude(RESET))
        return _stacked(rows)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Read the actions, write what follows under ``next``, return the same TensorDict."""
        rows = [env.step(td) for env, td in zip(self.envs, tensordict.unbind(0), strict=True)]
        return tensordict.set("next", _stacked([row.get("next") for row in rows]))

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """`step`, and the root of the following step, in which finished episodes have been reset."""
        pairs = [env.step_and_maybe_reset(td) for env, td in zip(self.envs, tensordict.unbind(0), strict=True)]
        stepped = _stacked([pair[0].get("next") for pair in pairs])
        return tensordict.set("next", stepped), _stacked([pair[1] for pair in pairs])

    def set_seed(self, seed: int) -> int:
        """Seed all; returns the seed for the next environment."""
        for env in self.envs:
            seed = env.set_seed(seed)
        return seed

    def close(self) -> None:
        """Close all. May be called twice."""
        for env in self.envs:
            env.close()

    def _state(self) -> dict[str, Any]:
        envs: list[Any] = list(self.envs)
        return {"envs": [env.state_dict() for env in envs]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
        envs: list[Any] = list(self.envs)
        for env, one in zip(envs, state["envs"], strict=True):
            env.load_state_dict(one)


def _stacked(rows: list[TensorDictBase]) -> TensorDictBase:
    # copied: an environment may hand out the same memory at every step
    return torch.stack([row.clone() for row in rows], 0)  # pyright: ignore[reportReturnType, reportArgumentType, reportCallIssue]  # torch.stack takes TensorDicts
