"""Value decomposition network."""

from __future__ import annotations

import torch
from torch import Tensor

from rl.modules import _foreign
from rl.modules.multi_agent._mixer import Mixer

__all__ = ["VDNMixer"]


@_foreign.mixer
class VDNMixer(Mixer):
    """Sum of the agents' values.

    Sunehag et al., "Value-decomposition networks for cooperative multi-agent learning", 2018, eq. 1.

    Args:
        n_agents: number of agents.

    Shapes: ``[*B, n_agents, 1]`` to ``[*B, 1]``.

    Example:
        >>> VDNMixer(2)(torch.tensor([[[1.0], [2.0]]]))
        tensor([[3.]])
    """

    def __init__(self, n_agents: int) -> None:
        super().__init__(n_agents)

    def mix(self, chosen_action_value: Tensor, state: Tensor | None) -> Tensor:
        """The sum."""
        del state
        return torch.sum(chosen_action_value, -2)
