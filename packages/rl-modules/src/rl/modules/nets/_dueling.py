"""Dueling networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl.modules.nets._arguments import with_defaults
from rl.modules.nets._conv import ConvNet
from rl.modules.nets._mlp import MLP

__all__ = ["DuelingCnnDQNet", "DuelingMlpDQNet"]

_HEAD = {"depth": 1, "num_cells": 512, "activation_class": nn.ELU}


class _DuelingNet(nn.Module):
    """Features, and two heads on them: ``V + A - mean(A)``."""

    def __init__(
        self,
        features: nn.Module,
        out_features: int | Sequence[int],
        out_features_value: int | Sequence[int],
        head: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.features = features
        self.advantage = MLP(out_features=out_features, **head)
        self.value = MLP(out_features=out_features_value, **head)
        self.out_features = self.advantage.out_features

    def forward(self, observation: Tensor) -> Tensor:
        """Value of each action."""
        features = self.features(observation)
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(-1, keepdim=True)


class DuelingMlpDQNet(_DuelingNet):
    """Dueling network on vectors.

    Wang et al., "Dueling Network Architectures for Deep Reinforcement Learning", 2016, eq. 9:
    ``Q = V + A - mean(A)``.

    Args:
        out_features: number of actions, or the shape ``(atoms, n)`` of a distributional network, whose last dimension
            is that of the actions.
        out_features_value: 1, or ``(atoms, 1)``.
        mlp_kwargs_feature: arguments of the `MLP` of the features that differ from the defaults: two hidden layers of
            256, the last one activated.
        mlp_kwargs_output: arguments of the `MLP` of each head that differ from the defaults: one hidden layer of 512.
        device: where the parameters are made.

    Shapes: ``[*B, in_features]`` to ``[*B, *out_features]``; the width of the input is found out at the first call
    unless `mlp_kwargs_feature` has ``in_features``.

    Example:
        >>> DuelingMlpDQNet(out_features=3)(torch.zeros(5, 4)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        out_features: int | Sequence[int],
        out_features_value: int | Sequence[int] = 1,
        mlp_kwargs_feature: Mapping[str, Any] | None = None,
        mlp_kwargs_output: Mapping[str, Any] | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        body: dict[str, Any] = {"num_cells": [256, 256], "activation_class": nn.ELU, "activate_last_layer": True}
        features = MLP(**with_defaults(body, mlp_kwargs_feature, device))
        super().__init__(features, out_features, out_features_value, with_defaults(_HEAD, mlp_kwargs_output, device))


class DuelingCnnDQNet(_DuelingNet):
    """Dueling network on pixels.

    Wang et al., "Dueling Network Architectures for Deep Reinforcement Learning", 2016, eq. 9, on the convolutions of
    Mnih et al., "Human-level control through deep reinforcement learning", 2015.

    Args:
        out_features: number of actions, or the shape ``(atoms, n)`` of a distributional network, whose last dimension
            is that of the actions.
        out_features_value: 1, or ``(atoms, 1)``.
        cnn_kwargs: arguments of the `ConvNet` of the features that differ from the defaults: 32, 64 and 64 channels,
            kernels of 8, 4 and 3, strides of 4, 2 and 1.
        mlp_kwargs: arguments of the `MLP` of each head that differ from the defaults: one hidden layer of 512.
        device: where the parameters are made.

    Shapes: floating-point pixels ``[*B, C, H, W]`` to ``[*B, *out_features]``.

    Example:
        >>> DuelingCnnDQNet(out_features=3)(torch.zeros(5, 4, 84, 84)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        out_features: int | Sequence[int],
        out_features_value: int | Sequence[int] = 1,
        cnn_kwargs: Mapping[str, Any] | None = None,
        mlp_kwargs: Mapping[str, Any] | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        body: dict[str, Any] = {"num_cells": [32, 64, 64], "kernel_sizes": [8, 4, 3], "strides": [4, 2, 1]}
        features = ConvNet(**with_defaults(body, cnn_kwargs, device))
        super().__init__(features, out_features, out_features_value, with_defaults(_HEAD, mlp_kwargs, device))
