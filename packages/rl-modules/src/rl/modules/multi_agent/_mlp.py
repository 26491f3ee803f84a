"""Multi-layer perceptrons of several agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rl.modules import _foreign
from rl.modules.layers._stacked import LayerMaker, stacked_norm
from rl.modules.multi_agent._base import MultiAgentNetBase
from rl.modules.nets._mlp import MLP

__all__ = ["MultiAgentMLP"]


@_foreign.multi_agent_net
class MultiAgentMLP(MultiAgentNetBase):
    """A multi-layer perceptron for each agent, of its own input or, centralized, of the inputs of all.

    ========================  ==========================================================================
    ``centralized=False``     the output of an agent depends on its own input: decentralized policies, IPPO's critics
    ``centralized=True``      it depends on all inputs: the critics of MAPPO and MADDPG
    ``share_params=True``     one network for all agents
    ``share_params=False``    a network for each agent; each layer of all agents is one batched matrix product
    ========================  ==========================================================================

    Args:
        n_agent_inputs: width of the input of one agent; found out at the first call if None.
        n_agent_outputs: width of the output of one agent.
        n_agents: number of agents.
        centralized: see above.
        share_params: see above.
        depth: number of hidden layers, see `MLP`.
        num_cells: widths of the hidden layers, see `MLP`.
        activation_class: between layers.
        device: where the parameters are made.
        kwargs: further arguments of `MLP`. With `norm_class` each agent has its own normalization layers unless
            parameters are shared.

    Shapes: ``[*B, n_agents, n_agent_inputs]`` to ``[*B, n_agents, n_agent_outputs]``; several inputs are concatenated
    on the last dimension.

    Raises:
        SpecError: if arguments contradict each other, are out of range or of another kind.

    Example:
        >>> critic = MultiAgentMLP(6, 1, n_agents=3, centralized=True, share_params=False, depth=2, num_cells=64)
        >>> critic(torch.zeros(8, 3, 6)).shape
        torch.Size([8, 3, 1])
    """

    _input_dims: ClassVar[int] = 1
    _input_names: ClassVar[tuple[str, ...]] = ("features",)
    _conversion: ClassVar[str] = "convert them, as by x.float()"

    def __init__(
        self,
        n_agent_inputs: int | None,
        n_agent_outputs: int,
        n_agents: int,
        *,
        centralized: bool,
        share_params: bool,
        depth: int | None = None,
        num_cells: int | Sequence[int] | None = None,
        activation_class: Any = nn.Tanh,
        device: torch.device | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(n_agents=n_agents, centralized=centralized, share_params=share_params, n_inputs=n_agent_inputs)
        width = n_agent_inputs if n_agent_inputs is None or not centralized else n_agent_inputs * self.n_agents
        if not share_params:
            kwargs["layer_class"] = LayerMaker(self.n_agents)
            if kwargs.get("norm_class") is not None:
                kwargs["norm_class"] = stacked_norm(kwargs["norm_class"], self.n_agents)
        self.net = MLP(
            width, n_agent_outputs, num_cells, depth, activation_class, device=device, **kwargs
        )  # with separate parameters it maps [n_agents, N, width]

    def _separate(self, x: Tensor) -> Tensor:
        if self.centralized:
            x = x.flatten(1)
            return self.net(x.expand(self.n_agents, *x.shape)).transpose(0, 1)
        return self.net(x.transpose(0, 1)).transpose(0, 1)
