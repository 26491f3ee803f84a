"""QMIX's monotonic mixing network."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from rl.core.arguments import as_integer
from rl.modules.multi_agent._mixer import Mixer
from rl.modules.nets._mlp import MLP

__all__ = ["QMixer"]


class QMixer(Mixer):
    """Monotonic mixing of the agents' values, with weights that are functions of the state.

    Rashid et al., "QMIX: Monotonic value function factorisation for deep multi-agent reinforcement learning", 2018, eq.
    5 and section 4.1: two layers whose weights are absolute values of the outputs of hypernetworks, so that the value
    of the team grows with that of each agent.

    Args:
        state_shape: shape of the state of the environment, without batch dimensions.
        mixing_embed_dim: width of the hidden layer, and of those of the hypernetworks.
        n_agents: number of agents.
        device: where the parameters are made.

    Raises:
        SpecError: if a size is not a positive integer.

    Shapes: ``[*B, n_agents, 1]`` and a state ``[*B, *state_shape]`` to ``[*B, 1]``.

    Example:
        >>> mixer = QMixer(state_shape=(6,), mixing_embed_dim=32, n_agents=3)
        >>> mixer(torch.zeros(8, 3, 1), torch.zeros(8, 6)).shape
        torch.Size([8, 1])
    """

    def __init__(
        self,
        state_shape: Sequence[int],
        mixing_embed_dim: int = 32,
        n_agents: int = 1,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_agents, state_shape)
        size = math.prod(self.state_shape or ())
        self.width = width = as_integer(mixing_embed_dim, "QMixer", "mixing_embed_dim", least=1)

        def hyper(out: int) -> MLP:
            return MLP(size, out, num_cells=[width], activation_class=nn.ReLU, device=device)

        self.first_weight, self.first_bias = hyper(self.n_agents * width), nn.Linear(size, width, device=device)
        self.last_weight, self.last_bias = hyper(width), hyper(1)

    def mix(self, chosen_action_value: Tensor, state: Tensor | None) -> Tensor:
        """The value of the team; its derivative with respect to each agent's value is not negative."""
        assert state is not None
        weight = self.first_weight(state).unflatten(-1, (self.n_agents, self.width)).abs()
        hidden = F.elu((chosen_action_value * weight).sum(-2) + self.first_bias(state))
        return (hidden * self.last_weight(state).abs()).sum(-1, keepdim=True) + self.last_bias(state)
