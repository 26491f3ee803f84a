"""Linear layers of several agents in one matrix product."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter

__all__ = ["LayerMaker", "StackedLinear", "stacked_norm"]


class StackedLinear(nn.Module):
    """A linear layer for each of n agents: ``[n, N, in_features]`` to ``[n, N, out_features]``.

    Args:
        count: number of agents.
        in_features: width of the input.
        out_features: width of the output.
        bias: whether there is a bias.
        device: where the parameters are made.
        dtype: of the parameters.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        count: int,
        in_features: int,
        out_features: int,
        bias: bool = True,  # noqa: FBT001, FBT002  torch's signature
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.count, self.in_features, self.out_features = count, in_features, out_features
        options: Any = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(count, in_features, out_features, **options))
        self.bias = nn.Parameter(torch.empty(count, 1, out_features, **options)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters of each agent as `torch.nn.Linear` does."""
        if not self.in_features:
            return
        bound = 1 / math.sqrt(self.in_features)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """The layers of all agents, each on its input."""
        return torch.bmm(x, self.weight) if self.bias is None else torch.baddbmm(self.bias, x, self.weight)

    def extra_repr(self) -> str:
        """Sizes, for `repr`."""
        return f"{self.count} x ({self.in_features}, {self.out_features}), bias={self.bias is not None}"


class LazyStackedLinear(LazyModuleMixin, StackedLinear):
    """`StackedLinear` that finds out the width of its input at the first call."""

    cls_to_become: Any = StackedLinear

    def __init__(self, count: int, out_features: int, bias: bool = True, **options: Any) -> None:  # noqa: FBT001, FBT002
        parent: Any = super()  # typed by torch as a protocol that no module fits
        parent.__init__(count, 0, out_features, bias, **options)
        self.weight = UninitializedParameter(**options)

    def initialize_parameters(self, x: Tensor) -> None:
        """Make the parameters for an input ``[n, N, in_features]``."""
        lazy: Any = self  # typed by torch as a protocol that no module fits
        if lazy.has_uninitialized_params():
            self.in_features = x.shape[-1]
            lazy.weight.materialize((self.count, self.in_features, self.out_features))
            self.reset_parameters()


class LayerMaker:
    """Makes layers of `count` agents, called like `torch.nn.Linear`.

    Args:
        count: number of agents.
    """

    __name__ = "StackedLinear"

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, in_features: int, out_features: int, **options: Any) -> StackedLinear:
        return StackedLinear(self.count, in_features, out_features, **options)

    def lazy(self, out_features: int, **options: Any) -> LazyStackedLinear:
        """A layer that finds out the width of its input."""
        return LazyStackedLinear(self.count, out_features, **options)


class _PerAgent(nn.ModuleList):
    """A module for each agent, applied to its rows of ``[n, N, features]``."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([module(rows) for module, rows in zip(self, x, strict=True)])


def stacked_norm(norm_class: Any, count: int) -> Any:
    """A function with the arguments of `norm_class` that makes one for each agent."""

    @functools.wraps(norm_class, updated=())
    def make(*args: Any, **kwargs: Any) -> nn.Module:
        return _PerAgent(norm_class(*args, **kwargs) for _ in range(count))

    return make
