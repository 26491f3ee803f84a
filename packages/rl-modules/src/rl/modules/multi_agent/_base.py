"""Base class of networks of several agents."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from rl.core.arguments import as_integer
from rl.core.errors import ShapeError

__all__ = ["MultiAgentNetBase"]


class MultiAgentNetBase(nn.Module):
    """Base of networks from the inputs of all agents to an output of each.

    A subclass sets `net` and implements `_separate`. With shared parameters `net` maps the input of one agent, or that
    of all if it is centralized, to one output, for any batch dimensions.

    Args:
        n_agents: number of agents.
        centralized: whether each agent's output depends on the inputs of all.
        share_params: whether all agents have the same parameters. If the network is centralized, too, all have the
            same output.
        n_inputs: size of the first dimension of the input of one agent; not checked if None.

    Shapes: ``[*B, n_agents, *input]`` to ``[*B, n_agents, output]``.
    """

    _input_dims: ClassVar[int]
    """Dimensions of the input of one agent."""
    _input_names: ClassVar[tuple[str, ...]]
    """Their names, for messages."""

    net: nn.Module

    def __init__(self, *, n_agents: int, centralized: bool, share_params: bool, n_inputs: int | None = None) -> None:
        super().__init__()
        self.n_agents = as_integer(n_agents, type(self).__name__, "n_agents", least=1)
        self.centralized, self.share_params, self.n_inputs = centralized, share_params, n_inputs

    @abstractmethod
    def _separate(self, x: Tensor) -> Tensor:
        """Output ``[N, n_agents, output]`` for inputs ``[N, n_agents, *input]``, with parameters for each agent."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """Outputs of all agents.

        Args:
            inputs: ``[*B, n_agents, *input]``; several are concatenated on the first dimension after the agents.

        Raises:
            ShapeError: if there is no input, or another number of agents or width.
        """
        own = self._input_dims
        if not inputs:
            raise ShapeError(f"{type(self).__name__} got no input")
        x = inputs[0] if len(inputs) == 1 else torch.cat(inputs, -own)
        if x.ndim <= own or x.shape[-own - 1] != self.n_agents or self.n_inputs not in (None, x.shape[-own]):
            shapes = ", ".join(str(tuple(one.shape)) for one in inputs)
            width = "" if self.n_inputs is None else f"={self.n_inputs}"
            first, *rest = self._input_names
            raise ShapeError(
                f"{type(self).__name__} expects inputs"
                f" [*B, n_agents={self.n_agents}, {', '.join([first + width, *rest])}], got {shapes}"
            )
        if self.share_params:
            if not self.centralized:
                return self.net(x)
            out = self.net(x.flatten(-own - 1, -own))
            return out.unsqueeze(-2).expand(*out.shape[:-1], self.n_agents, out.shape[-1])
        batch = x.shape[: -own - 1]
        out = self._separate(x.reshape(-1, *x.shape[-own - 1 :]))
        return out.reshape(*batch, *out.shape[1:])
