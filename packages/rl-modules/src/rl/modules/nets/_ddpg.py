"""Networks of deep deterministic policy gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rl.modules.nets._arguments import with_defaults
from rl.modules.nets._conv import ConvNet
from rl.modules.nets._mlp import MLP

__all__ = ["DdpgCnnActor", "DdpgCnnQNet", "DdpgMlpActor", "DdpgMlpQNet"]

Given = Mapping[str, Any] | None
Device = torch.device | str | None

# Bounds of the uniform initial weights of the last layer: Lillicrap et al., 2015, section 7.
_LAST, _LAST_OF_PIXELS = 3e-3, 3e-4
_CONVOLUTIONS = {"num_cells": [32, 64, 64], "kernel_sizes": [8, 4, 3], "strides": [4, 2, 1], "paddings": [0, 0, 1]}
_HEAD = {"num_cells": [200, 200], "depth": 2, "activation_class": nn.ELU}


class DdpgMlpActor(nn.Module):
    """Deterministic policy on vectors.

    Lillicrap et al., "Continuous control with deep reinforcement learning", 2015, section 7. The output is not
    squashed: put a `TanhModule` after it, or use it in a `ProbabilisticActor` with `TanhDelta`.

    Args:
        action_dim: number of action dimensions.
        mlp_net_kwargs: arguments of the `MLP` that differ from the defaults: hidden layers of 400 and 300.
        device: where the parameters are made.

    Shapes: ``[*B, in_features]`` to ``[*B, action_dim]``.

    Example:
        >>> DdpgMlpActor(action_dim=2)(torch.zeros(5, 4)).shape
        torch.Size([5, 2])
    """

    def __init__(self, action_dim: int, mlp_net_kwargs: Given = None, *, device: Device = None) -> None:
        super().__init__()
        defaults = {"num_cells": [400, 300], "depth": 2, "activation_class": nn.ELU}
        self.mlp = _head(action_dim, defaults, mlp_net_kwargs, device, _LAST)
        self.out_features = action_dim

    def forward(self, observation: Tensor) -> Tensor:
        """The action before squashing."""
        return self.mlp(observation)


class DdpgMlpQNet(nn.Module):
    """Value of a state and an action, on vectors; the action enters after the first layer.

    Lillicrap et al., "Continuous control with deep reinforcement learning", 2015, section 7.

    Args:
        mlp_net_kwargs_net1: arguments of the `MLP` on the observation that differ from the defaults: one activated
            layer of 400.
        mlp_net_kwargs_net2: arguments of the `MLP` on its output and the action that differ from the defaults: one
            hidden layer of 300.
        device: where the parameters are made.

    Shapes: ``[*B, in_features]`` and ``[*B, A]`` to ``[*B, 1]``.

    Example:
        >>> DdpgMlpQNet()(torch.zeros(5, 4), torch.zeros(5, 2)).shape
        torch.Size([5, 1])
    """

    def __init__(
        self, mlp_net_kwargs_net1: Given = None, mlp_net_kwargs_net2: Given = None, *, device: Device = None
    ) -> None:
        super().__init__()
        first = {"num_cells": [400], "depth": 1, "activation_class": nn.ELU, "activate_last_layer": True}
        self.mlp1 = MLP(**with_defaults(first, mlp_net_kwargs_net1, device))
        second = {"num_cells": [300], "depth": 1, "activation_class": nn.ELU}
        self.mlp2 = _head(1, second, mlp_net_kwargs_net2, device, _LAST)
        self.out_features = self.mlp2.out_features

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Value of the action."""
        return self.mlp2(self.mlp1(observation), action)


class DdpgCnnActor(nn.Module):
    """Deterministic policy on pixels.

    Lillicrap et al., "Continuous control with deep reinforcement learning", 2015, section 7. The action is not
    squashed: put a `TanhModule` after it, or use it in a `ProbabilisticActor` with `TanhDelta`.

    Args:
        action_dim: number of action dimensions.
        conv_net_kwargs: arguments of the `ConvNet` that differ from the defaults: 32, 64 and 64 channels, kernels of
            8, 4 and 3, strides of 4, 2 and 1.
        mlp_net_kwargs: arguments of the `MLP` after it that differ from the defaults: two hidden layers of 200.
        use_avg_pooling: whether features are the means of the channels, not the flattened pixels.
        device: where the parameters are made.

    Shapes: floating-point pixels ``[*B, C, H, W]`` to the action ``[*B, action_dim]`` and the features ``[*B, F]``.

    Example:
        >>> action, hidden = DdpgCnnActor(action_dim=2)(torch.zeros(5, 3, 64, 64))
        >>> action.shape, hidden.shape
        (torch.Size([5, 2]), torch.Size([5, 2304]))
    """

    def __init__(
        self,
        action_dim: int,
        conv_net_kwargs: Given = None,
        mlp_net_kwargs: Given = None,
        *,
        use_avg_pooling: bool = False,
        device: Device = None,
    ) -> None:
        super().__init__()
        self.convnet = _convolutions(conv_net_kwargs, device, pooled=use_avg_pooling)
        self.mlp = _head(action_dim, _HEAD, mlp_net_kwargs, device, _LAST_OF_PIXELS)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """The action before squashing, and the features."""
        hidden = self.convnet(observation)
        return self.mlp(hidden), hidden


class DdpgCnnQNet(nn.Module):
    """Value of a state and an action, on pixels.

    Lillicrap et al., "Continuous control with deep reinforcement learning", 2015, section 7.

    Args:
        conv_net_kwargs: arguments of the `ConvNet` that differ from the defaults: 32, 64 and 64 channels, kernels of
            8, 4 and 3, strides of 4, 2 and 1.
        mlp_net_kwargs: arguments of the `MLP` on its output and the action that differ from the defaults: two hidden
            layers of 200.
        use_avg_pooling: whether features are the means of the channels, not the flattened pixels.
        device: where the parameters are made.

    Shapes: floating-point pixels ``[*B, C, H, W]`` and actions ``[*B, A]`` to ``[*B, 1]``.

    Example:
        >>> DdpgCnnQNet()(torch.zeros(5, 3, 64, 64), torch.zeros(5, 2)).shape
        torch.Size([5, 1])
    """

    def __init__(
        self,
        conv_net_kwargs: Given = None,
        mlp_net_kwargs: Given = None,
        *,
        use_avg_pooling: bool = True,
        device: Device = None,
    ) -> None:
        super().__init__()
        self.convnet = _convolutions(conv_net_kwargs, device, pooled=use_avg_pooling)
        self.mlp = _head(1, _HEAD, mlp_net_kwargs, device, _LAST_OF_PIXELS)
        self.out_features = self.mlp.out_features

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Value of the action."""
        return self.mlp(self.convnet(observation), action)


def _head(width: int, defaults: Mapping[str, Any], given: Given, device: Device, bound: float) -> MLP:
    """The last layers, of which the last starts uniform within `bound`; a lazy one starts as in torch."""
    net = MLP(**with_defaults({"out_features": width, **defaults}, given, device))
    last = [layer for layer in net if isinstance(layer, nn.Linear)][-1]
    for one in last.parameters(recurse=False):
        if not nn.parameter.is_lazy(one):
            nn.init.uniform_(one, -bound, bound)
    return net


def _convolutions(given: Given, device: Device, *, pooled: bool) -> ConvNet:
    defaults: dict[str, Any] = {**_CONVOLUTIONS, "activation_class": nn.ELU}
    if pooled:
        defaults["aggregator_class"] = _ChannelMeans
    return ConvNet(**with_defaults(defaults, given, device))


class _ChannelMeans(nn.Module):
    """From pixels ``[N, C, H, W]`` to the means of the channels ``[N, C]``."""

    def forward(self, pixels: Tensor) -> Tensor:
        return pixels.mean((-2, -1))
