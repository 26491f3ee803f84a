"""Rewards times a number."""

from __future__ import annotations

from rl.core.arguments import as_number
from rl.core.contract import Contract, Key
from rl.core.keys import NEXT
from tensordict import TensorDictBase

__all__ = ["ScaleReward"]


class ScaleReward:
    """Multiply the reward, in environments and in batches.

    Args:
        factor: Number by which rewards are multiplied.

    Keys: replaces ``reward``, and ``("next", "reward")`` in a batch, where they are.

    Raises:
        ArgumentError: If `factor` is no finite number.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> ScaleReward(0.5)(TensorDict(reward=torch.ones(1)))["reward"]
        tensor([0.5000])
    """

    def __init__(self, factor: float = 0.1) -> None:
        self.factor = as_number(factor, "ScaleReward", "factor")
        keys = tuple(Key(key, doc="reward", optional=True) for key in ("reward", (NEXT, "reward")))
        self.contract = Contract(reads=keys, writes=keys)

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        # After a step an environment calls this with what the step wrote, a replay buffer with a batch.
        for key in ("reward", (NEXT, "reward")):
            reward = tensordict.get(key, None)
            if reward is not None:
                tensordict = tensordict.set(key, reward * self.factor)
        return tensordict
