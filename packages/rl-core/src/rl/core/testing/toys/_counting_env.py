"""The smallest environment that keeps every promise: it counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.interfaces import LeafEnv, Leaves
from rl.core.specs import Binary, Categorical, Composite, Unbounded

__all__ = ["CountingEnv"]

FLAGS = ("done", "terminated", "truncated")


class CountingEnv:
    """Counts the steps of an episode and terminates it at `length`; for tests, and as an example of the protocol.

    It is an `rl.core.interfaces.Env` without inheriting from anything. ``observation`` is the number of steps since
    the reset, the reward is the action.

    Args:
        length: steps of an episode, >= 1. A list gives each element of the batch its own.
        batch_size: of the environment.

    Keys: writes ``observation`` float32 ``[*B, 1]``; reads ``action`` int64 ``[*B]`` in {0, 1}; writes under
    ``next`` the observation, ``reward`` float32 ``[*B, 1]`` and the done flags bool ``[*B, 1]``.

    Example:
        >>> env = CountingEnv(length=2)
        >>> root = env.reset()
        >>> root["action"] = torch.tensor(1)
        >>> _, root = env.step_and_maybe_reset(root)
        >>> root["observation"]
        tensor([1.])
    """

    def __init__(self, length: int | list[int] = 3, batch_size: tuple[int, ...] = ()) -> None:
        self.batch_size = torch.Size(batch_size)
        self.device = torch.device("cpu")
        self._length = (
            torch.as_tensor(length, dtype=torch.float32).reshape(-1, 1) if isinstance(length, list) else length
        )
        shape = (*batch_size, 1)
        self.observation_spec = Composite(observation=Unbounded(shape), shape=batch_size)
        self.full_action_spec = Composite(action=Categorical(2, shape=batch_size), shape=batch_size)
        self.full_reward_spec = Composite(reward=Unbounded(shape), shape=batch_size)
        flag = Binary(shape=shape, dtype=torch.bool)
        self.full_done_spec = Composite(dict.fromkeys(FLAGS, flag), shape=batch_size)
        self.closed = False

    @property
    def action_spec(self) -> Categorical:
        """The action's spec."""
        return self.full_action_spec["action"]

    def reset_leaves(self, current: Leaves | None = None, mask: Tensor | None = None) -> Leaves:
        """See `rl.core.interfaces.LeafEnv`."""
        start = torch.zeros((*self.batch_size, 1))
        flags = {flag: torch.zeros(start.shape, dtype=torch.bool) for flag in FLAGS}
        if mask is None or current is None:
            return {"observation": start, **flags}
        kept: Leaves = {"observation": torch.where(mask, start, current["observation"])}
        return kept | {flag: current[flag] & ~mask for flag in FLAGS}

    def step_leaves(self, root: Leaves) -> Leaves:
        """See `rl.core.interfaces.LeafEnv`."""
        count = root["observation"] + 1
        ended = count >= self._length
        return {
            "observation": count,
            "reward": root["action"].to(torch.float32).unsqueeze(-1),
            "done": ended,
            "terminated": ended.clone(),
            "truncated": torch.zeros_like(ended),
        }

    def lowered(self) -> LeafEnv:
        """The leaf form: the environment itself."""
        return self

    def reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """See `rl.core.interfaces.Env`."""
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if tensordict is None or mask is None:
            return TensorDict(self.reset_leaves(), batch_size=self.batch_size)  # pyright: ignore[reportArgumentType]
        root: Leaves = {key: tensordict[key] for key in ("observation", *FLAGS)}
        return tensordict.exclude("_reset").update(self.reset_leaves(root, mask))

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """See `rl.core.interfaces.Env`."""
        outcome = self.step_leaves({key: tensordict[key] for key in ("observation", "action")})
        return tensordict.set("next", TensorDict(outcome, batch_size=self.batch_size))  # pyright: ignore[reportArgumentType]

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """See `rl.core.interfaces.Env`."""
        self.step(tensordict)
        root = tensordict["next"].exclude("reward")
        done = root["done"]
        return tensordict, self.reset(root.set("_reset", done)) if bool(done.any()) else root

    def set_seed(self, seed: int) -> int:
        """Nothing here is random."""
        return seed + 1

    def state_dict(self) -> dict[str, Any]:
        """Everything is in the root entries."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""

    def close(self) -> None:
        """Set `closed`."""
        self.closed = True
