"""Residual network on pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl.core.arguments import as_integer
from rl.core.errors import ShapeError, SpecError

__all__ = ["ImpalaNet"]


class ImpalaNet(nn.Module):
    """Deep residual network of IMPALA, without its recurrent layer.

    Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures", 2018,
    figure 3 (right). Each section is a convolution, a max-pooling with stride 2, and two residual blocks. For the
    recurrent layer, put an `LSTMModule` after it.

    Args:
        in_features: channels of the input; found out at the first call if None.
        channels: of each section; ``[32, 64, 64]`` is twice as wide as in the paper.
        out_features: width of the features.
        device: where the parameters are made.

    Shapes: floating-point pixels ``[*B, C, H, W]`` to ``[*B, out_features]``.

    Raises:
        SpecError: if there is no section, or a width is no positive integer.
        ShapeError: in the call, if there are fewer than three dimensions, or pixels are integers.

    Example:
        >>> ImpalaNet()(torch.zeros(5, 3, 64, 64)).shape
        torch.Size([5, 256])
    """

    def __init__(
        self,
        in_features: int | None = None,
        channels: Sequence[int] = (16, 32, 32),
        out_features: int = 256,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        widths = [as_integer(one, "ImpalaNet", "an entry of channels", least=1) for one in channels]
        if not widths:
            raise SpecError("ImpalaNet got channels=(); it needs at least one section")
        self.in_features = None if in_features is None else as_integer(in_features, "ImpalaNet", "in_features", least=1)
        self.out_features = as_integer(out_features, "ImpalaNet", "out_features", least=1)
        before: list[int | None] = [self.in_features, *widths[:-1]]
        self.sections = nn.Sequential(*[_section(a, b, device) for a, b in zip(before, widths, strict=True)])
        self.head = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.LazyLinear(self.out_features, device=device), nn.ReLU())

    def forward(self, pixels: Tensor) -> Tensor:
        """Features of images.

        Raises:
            ShapeError: if there are fewer than three dimensions, the channels are not `in_features`, or the pixels are
                integers.
        """
        if pixels.ndim < 3 or (self.in_features is not None and pixels.shape[-3] != self.in_features):
            channels = "C" if self.in_features is None else self.in_features
            raise ShapeError(f"ImpalaNet expects pixels [*B, {channels}, H, W], got {tuple(pixels.shape)}")
        if not pixels.is_floating_point():
            raise ShapeError(f"ImpalaNet expects floating-point pixels, got {pixels.dtype}: scale them, as by x / 255")
        batch = pixels.shape[:-3]
        features = self.head(self.sections(pixels.reshape(-1, *pixels.shape[-3:])))
        return features.reshape(*batch, self.out_features)


def _section(before: int | None, width: int, device: torch.device | str | None) -> nn.Sequential:
    options: Any = {"kernel_size": 3, "padding": 1, "device": device}
    first = nn.LazyConv2d(width, **options) if before is None else nn.Conv2d(before, width, **options)
    pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
    return nn.Sequential(first, pool, _ResidualBlock(width, options), _ResidualBlock(width, options))


class _ResidualBlock(nn.Module):
    """``x + conv(relu(conv(relu(x))))``."""

    def __init__(self, width: int, options: dict[str, Any]) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, **options), nn.Conv2d(width, width, **options)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x.relu()).relu())
