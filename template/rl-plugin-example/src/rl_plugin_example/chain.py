"""A chain of states: walk to its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from rl.core.arguments import as_integer, as_number
from rl.core.interfaces import LeafEnv, Leaves
from rl.core.mdp import FLAGS, StepMDP
from rl.core.specs import Binary, Bounded, Categorical, Composite, Unbounded
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

__all__ = ["ChainEnv"]


class ChainEnv:
    """A chain of states; action 1 goes right, action 0 goes left, and now and then the step slips the other way.

    An episode starts at the left end. It terminates at the right end, which is worth 1, and is truncated after four
    steps for each state. Every step costs ``1 / max_steps``, so that returns lie between -1 and 1.

    It is an `rl.core.interfaces.Env` without inheriting from anything, and a `rl.core.interfaces.LeafEnv` for those
    that drive it without TensorDicts.

    Args:
        num_envs: Number of chains that run side by side; None for one without a batch dimension.
        length: Number of states, at least 2.
        slip: Probability of a slip, in [0, 0.5).
        device: Device of the tensors; the CPU if None.

    Keys: writes ``observation`` float32 ``[*B, length]``, one-hot; reads ``action`` int64 ``[*B]`` in {0, 1}; writes
    under ``next`` the observation, ``reward`` float32 ``[*B, 1]`` and the done flags bool ``[*B, 1]``.

    Raises:
        ArgumentError: If an argument is out of range.

    Example:
        >>> env = ChainEnv(length=2, slip=0.0)
        >>> root = env.reset()
        >>> root["action"] = torch.tensor(1)
        >>> env.step(root)["next", "terminated"]
        tensor([True])
    """

    def __init__(
        self,
        num_envs: int | None = None,
        *,
        length: int = 6,
        slip: float = 0.1,
        device: torch.device | str | None = None,
    ) -> None:
        self.length = as_integer(length, "ChainEnv", "length", least=2)
        self.slip = as_number(slip, "ChainEnv", "slip", least=0, below=0.5)
        self.max_steps = 4 * self.length
        self.device = torch.device("cpu" if device is None else device)
        batch = () if num_envs is None else (as_integer(num_envs, "ChainEnv", "num_envs", least=1),)
        self.batch_size = torch.Size(batch)
        on: dict[str, Any] = {"device": self.device}
        flag = Binary(shape=(*batch, 1), dtype=torch.bool, **on)
        self.observation_spec = Composite(
            observation=Bounded(0.0, 1.0, shape=(*batch, length), **on), shape=batch, **on
        )
        self.full_action_spec = Composite(action=Categorical(2, shape=batch, **on), shape=batch, **on)
        self.full_reward_spec = Composite(reward=Unbounded(shape=(*batch, 1), **on), shape=batch, **on)
        self.full_done_spec = Composite(dict.fromkeys(FLAGS, flag), shape=batch, **on)
        self._next_root = StepMDP.from_env(self)
        self._rng = torch.Generator(self.device)
        self._position = torch.zeros(batch, dtype=torch.int64, **on)
        self._steps = torch.zeros(batch, dtype=torch.int64, **on)

    @property
    def action_spec(self) -> Categorical:
        """Spec of the one action."""
        return self.full_action_spec["action"]

    # ------------------------------------------------------------ plain tensors

    def lowered(self) -> LeafEnv:
        """Leaf form, used by collectors."""
        return self

    def reset_leaves(self, current: Leaves | None = None, mask: Tensor | None = None) -> Leaves:
        """See `rl.core.interfaces.LeafEnv`."""
        if mask is None or current is None:
            self._position, self._steps = torch.zeros_like(self._position), torch.zeros_like(self._steps)
            return {"observation": self._observe(), **{flag: self._no() for flag in FLAGS}}
        kept = ~mask.squeeze(-1)
        self._position, self._steps = self._position * kept, self._steps * kept
        root: Leaves = {"observation": torch.where(mask, self._observe(), current["observation"])}
        return root | {flag: current[flag] & ~mask for flag in FLAGS}

    def step_leaves(self, root: Leaves) -> Leaves:
        """See `rl.core.interfaces.LeafEnv`."""
        move = 2 * root["action"] - 1
        slips = torch.rand(self.batch_size, generator=self._rng, device=self.device) < self.slip
        self._position = (self._position + torch.where(slips, -move, move)).clamp(0, self.length - 1)
        self._steps = self._steps + 1
        terminated = (self._position == self.length - 1).unsqueeze(-1)
        truncated = (self._steps >= self.max_steps).unsqueeze(-1) & ~terminated
        return {
            "observation": self._observe(),
            "reward": terminated.to(torch.float32) - 1 / self.max_steps,
            "done": terminated | truncated,
            "terminated": terminated,
            "truncated": truncated,
        }

    def _observe(self) -> Tensor:
        return torch.nn.functional.one_hot(self._position, self.length).to(torch.float32)

    def _no(self) -> Tensor:
        return torch.zeros((*self.batch_size, 1), dtype=torch.bool, device=self.device)

    # ------------------------------------------------------------ TensorDicts

    def reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Start episodes: all, or those that ``_reset`` marks."""
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if tensordict is None or mask is None:
            return TensorDict(dict(self.reset_leaves()), batch_size=self.batch_size)
        current: Leaves = {key: tensordict[key] for key in ("observation", *FLAGS)}
        return tensordict.exclude("_reset").update(dict(self.reset_leaves(current, mask)))

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Read ``action``, write what follows under ``next``, return the same TensorDict."""
        outcome = self.step_leaves({"action": tensordict["action"]})
        return tensordict.set("next", TensorDict(dict(outcome), batch_size=self.batch_size))

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """`step`, and the root of the following step, in which finished episodes have been reset."""
        root = self._next_root(self.step(tensordict))
        done = root["done"]
        return tensordict, self.reset(root.set("_reset", done)) if bool(done.any()) else root

    # ------------------------------------------------------------ the rest of the protocol

    def set_seed(self, seed: int) -> int:
        """Seed the slips; returns the seed for the next environment."""
        self._rng.manual_seed(seed)
        return seed + 1

    def state_dict(self) -> dict[str, Any]:
        """Return what an exact continuation needs."""
        return {
            "position": self._position.clone(),
            "steps": self._steps.clone(),
            "rng": self._rng.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
        self._position, self._steps = state["position"].clone(), state["steps"].clone()
        self._rng.set_state(state["rng"])

    def close(self) -> None:
        """Nothing is held."""
