"""Base class of networks of several agents."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from rl.core.arguments import as_integer
from rl.core.errors import ShapeError, SpecError

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

    Raises:
        SpecError: if `n_agents` is no positive integer, or `centralized` or `share_params` is no bool.
    """

    _input_dims: ClassVar[int]
    """Dimensions of the input of one agent."""
    _input_names: ClassVar[tuple[str, ...]]
    """Their names, for messages."""
    _conversion: ClassVar[str]
    """How to make integers floating-point numbers, for messages."""

    net: nn.Module

    def __init__(self, *, n_agents: int, centralized: bool, share_params: bool, n_inputs: int | None = None) -> None:
        super().__init__()
        owner = type(self).__name__
        self.n_agents = as_integer(n_agents, owner, "n_agents", least=1)
        for name, value in (("centralized", centralized), ("share_params", share_params)):
            if not isinstance(value, bool):
                raise SpecError(f"{owner}: {name} must be True or False, got {value!r:.100}")
        self.centralized, self.share_params, self.n_inputs = centralized, share_params, n_inputs

    @abstractmethod
    def _separate(self, x: Tensor) -> Tensor:
        """Output ``[N, n_agents, output]`` for inputs ``[N, n_agents, *input]``, with parameters for each agent."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """Outputs of all agents.

        Args:
            inputs: ``[*B, n_agents, *input]``; several are concatenated on the first dimension after the agents.

        Raises:
            ShapeError: if there is no input, another number of agents or width, inputs differ in other dimensions, or
                all are integers.
        """
        own = self._input_dims
        if not inputs:
            raise ShapeError(f"{type(self).__name__} got no input")
        x = inputs[0]
        if len(inputs) > 1:
            if x.ndim <= own or any(_other_dims(one, own) != _other_dims(x, own) for one in inputs[1:]):
                raise self._unfit(inputs)
            x = torch.cat(inputs, -own)
        if x.ndim <= own or x.shape[-own - 1] != self.n_agents or self.n_inputs not in (None, x.shape[-own]):
            raise self._unfit(inputs)
        if not x.is_floating_point():
            raise ShapeError(
                f"{type(self).__name__} expects floating-point inputs, got {x.dtype} {tuple(x.shape)}:"
                f" {self._conversion}"
            )
        if self.share_params:
            if not self.centralized:
                return self.net(x)
            out = self.net(x.flatten(-own - 1, -own))
            return out.unsqueeze(-2).expand(*out.shape[:-1], self.n_agents, out.shape[-1])
        batch = x.shape[: -own - 1]
        out = self._separate(x.reshape(-1, *x.shape[-own - 1 :]))
        return out.reshape(*batch, *out.shape[1:])

    def _unfit(self, inputs: Sequence[Tensor]) -> ShapeError:
        shapes = ", ".join(str(tuple(one.shape)) for one in inputs)
        width = "" if self.n_inputs is None else f"={self.n_inputs}"
        first, *rest = self._input_names
        return ShapeError(
            f"{type(self).__name__} expects inputs"
            f" [*B, n_agents={self.n_agents}, {', '.join([first + width, *rest])}], got {shapes}"
        )


def _other_dims(x: Tensor, own: int) -> tuple[torch.Size, torch.Size]:
    """Sizes of the dimensions before and after the one on which inputs are concatenated."""
    return x.shape[:-own], x.shape[x.ndim - own + 1 :]
