"""Initial weights."""

from __future__ import annotations

import math
from typing import TypeVar

from torch import nn

from rl.core.errors import SpecError
from rl.modules.layers._stacked import StackedLinear

__all__ = ["orthogonal_init"]

Net = TypeVar("Net", bound=nn.Module)


def orthogonal_init(module: Net, gain: float = math.sqrt(2), last_gain: float | None = None) -> Net:
    """Set the weights of linear and convolutional layers orthogonal and their biases zero, in place.

    Saxe et al., "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks", 2014. For
    policy gradients, a hidden gain of sqrt(2), 0.01 in the policy's last layer and 1 in the critic's are customary.

    Args:
        module: the network; lazy layers must have seen an input.
        gain: scale of the weights.
        last_gain: that of the last layer in order of registration; `gain` if None.

    Returns:
        `module` itself.

    Raises:
        SpecError: if a layer is lazy and has not seen an input.

    Example:
        >>> import torch
        >>> net = orthogonal_init(nn.Linear(4, 4), gain=2.0)
        >>> torch.allclose((net.weight @ net.weight.T).diag(), torch.full((4,), 4.0))
        True
    """
    layers = [m for m in module.modules() if isinstance(m, (nn.Linear, StackedLinear, nn.Conv1d, nn.Conv2d, nn.Conv3d))]
    for layer in layers:
        if nn.parameter.is_lazy(layer.weight):
            raise SpecError(f"orthogonal_init: {layer} does not know its width yet; call the network once before")
    for place, layer in enumerate(layers):
        last = last_gain is not None and place == len(layers) - 1
        for weight in layer.weight if isinstance(layer, StackedLinear) else [layer.weight]:
            nn.init.orthogonal_(weight, last_gain if last and last_gain is not None else gain)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return module
