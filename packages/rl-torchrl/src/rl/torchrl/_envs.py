"""Environments in TorchRL's spelling: specs with the batch, and a `torch.nn.Module`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rl.core.specs import TensorSpec
from rl.envs import EnvBase as UnbatchedEnvBase

_SPECS = frozenset(
    f"{full}{role}_spec" for full in ("", "full_") for role in ("observation", "action", "reward", "done", "state")
)


class EnvBase(UnbatchedEnvBase, nn.Module):
    """Base class of environments that are written for TorchRL: `rl.envs.EnvBase`, and a `torch.nn.Module`.

    A spec that begins with the batch of the environment is assigned without it; one that does not is for one element.
    Networks and parameters that are assigned are registered, moved by `to`, and shown by `parameters`.
    ``state_dict`` is that of the environment, without parameters.

    Args:
        device: Device of all tensors.
        batch_size: Number of elements in each batch dimension.
        options: Arguments of `rl.envs.EnvBase`, and those of TorchRL that are ignored at their default.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.core import Bounded, Composite, Unbounded
        >>> class Walk(EnvBase):
        ...     def __init__(self):
        ...         super().__init__(batch_size=[3])
        ...         self.observation_spec = Composite(observation=Unbounded((3, 1)), shape=(3,))
        ...         self.action_spec = Bounded(-1, 1, shape=(3, 1))
        ...     def _reset(self, tensordict=None, **kwargs):
        ...         return TensorDict(observation=torch.zeros(3, 1), batch_size=self.batch_size)
        ...     def _step(self, tensordict):
        ...         place = tensordict["observation"] + tensordict["action"]
        ...         done = torch.zeros(3, 1, dtype=torch.bool)
        ...         return TensorDict(observation=place, reward=place.abs(), done=done, batch_size=self.batch_size)
        >>> Walk().rollout(4).batch_size, Walk().action_spec.shape
        (torch.Size([3, 4]), torch.Size([3, 1]))
    """

    def __init__(self, *, device: torch.device | str | int | None = None, batch_size: Any = (), **options: Any) -> None:
        nn.Module.__init__(self)
        UnbatchedEnvBase.__init__(self, device=device, batch_size=batch_size, **options)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _SPECS and isinstance(value, TensorSpec) and "batch_size" in vars(self):
            lead = len(self.batch_size)
            if value.shape[:lead] == self.batch_size:
                value = value[(0,) * lead] if lead else value
        super().__setattr__(name, value)

    def to(self, target: torch.device | str | int | torch.dtype) -> Any:
        """Move the environment and its parameters; see `rl.envs.EnvBase.to`."""
        nn.Module.to(self, target)
        return super().to(target)
