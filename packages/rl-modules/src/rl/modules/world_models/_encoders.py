"""Encoders, decoders and policies of Dreamer and DreamerV3, and the sizes of DreamerV3."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from rl.core.arguments import as_integer, as_number, one_of
from rl.core.errors import ArgumentError, ShapeError
from rl.modules.distributions._base import NormalParamExtractor
from rl.modules.nets._mlp import MLP
from rl.modules.value_transforms import symlog
from rl.modules.world_models._layers import (
    BlockLinear,
    DreamerLinear,
    DreamerV3MLP,
    RMSNorm,
    hidden_layers,
    init_weight,
)
from rl.modules.world_models._two_hot import unimix_logits

Device = torch.device | str | None


@dataclass(frozen=True)
class DreamerV3Size:
    """Widths of a DreamerV3 model.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, extended data table 3.

    Attributes:
        deter: Width of the belief.
        hidden: Width of the hidden layers of the recurrent state-space model.
        classes: Number of classes of each of the 32 categoricals of the state.
        depth: Channels of the convolutions, before their factors.
        units: Width of the hidden layers of encoders, decoders and heads.

    Example:
        >>> dreamer_v3_size("1M")
        DreamerV3Size(deter=512, hidden=64, classes=4, depth=4, units=64)
    """

    deter: int
    hidden: int
    classes: int
    depth: int
    units: int


_SIZES = {
    "1M": DreamerV3Size(512, 64, 4, 4, 64),
    "12M": DreamerV3Size(2048, 256, 16, 16, 256),
    "25M": DreamerV3Size(3072, 384, 24, 24, 384),
    "50M": DreamerV3Size(4096, 512, 32, 32, 512),
    "100M": DreamerV3Size(6144, 768, 48, 48, 768),
    "200M": DreamerV3Size(8192, 1024, 64, 64, 1024),
    "400M": DreamerV3Size(12288, 1536, 96, 96, 1536),
}


def dreamer_v3_size(name: str) -> DreamerV3Size:
    """Return the widths of DreamerV3's model of a size.

    Args:
        name: ``"1M"``, ``"12M"``, ``"25M"``, ``"50M"``, ``"100M"``, ``"200M"``, which is the default
            of the paper, or ``"400M"``.

    Raises:
        ArgumentError: If there is no such size.

    Example:
        >>> dreamer_v3_size("200M").deter
        8192
    """
    return _SIZES[one_of(name, "dreamer_v3_size", "name", _SIZES)]


class DreamerActor(nn.Module):
    """Policy network of Dreamer: mean and standard deviation of the action.

    Hafner et al., "Dream to control: learning behaviors by latent imagination", 2020, appendix A.

    Args:
        out_features: Width of the action.
        depth: Number of hidden layers.
        num_cells: Width of the hidden layers.
        activation_class: Activation of the hidden layers.
        std_bias: Standard deviation where the network returns 0.
        std_min_val: Least standard deviation.
        device: Device of the parameters.

    Shapes: state and belief ``[*B, .]`` to ``loc`` and ``scale`` ``[*B, out_features]``.

    Example:
        >>> loc, scale = DreamerActor(2, depth=1, num_cells=8)(torch.zeros(3, 4), torch.zeros(3, 5))
        >>> loc.shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        out_features: int,
        depth: int = 4,
        num_cells: int = 200,
        activation_class: Any = nn.ELU,
        std_bias: float = 5.0,
        std_min_val: float = 1e-4,
        device: Device = None,
    ) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            MLP(
                out_features=2 * out_features,
                depth=depth,
                num_cells=num_cells,
                activation_class=activation_class,
                device=device,
            ),
            NormalParamExtractor(scale_mapping=f"biased_softplus_{std_bias}_{std_min_val}"),
        )

    def forward(self, state: Tensor, belief: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation."""
        loc, scale = self.backbone(torch.cat((state, belief), -1))
        return loc, scale


class DreamerV3Actor(nn.Module):
    """Policy network of DreamerV3.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, section "Actor learning". Of
    continuous actions: a mean in (-1, 1) and a standard deviation in `min_scale` to `max_scale`; of discrete ones:
    log-probabilities that are mixed with the uniform distribution.

    Args:
        in_features: Width of state and belief together.
        out_features: Width of the action, or number of actions.
        discrete: Whether actions are discrete.
        depth: Number of hidden layers.
        num_cells: Width of the hidden layers.
        min_scale: Least standard deviation.
        max_scale: Largest standard deviation.
        unimix: Share of the uniform distribution of discrete actions, in [0, 1).
        device: Device of the parameters.

    Shapes: state and belief ``[*B, .]`` to ``loc`` and ``scale``, or to ``logits``, ``[*B, out_features]``.

    Example:
        >>> loc, scale = DreamerV3Actor(9, 2, num_cells=8)(torch.zeros(3, 4), torch.zeros(3, 5))
        >>> scale[0]
        tensor([0.8927, 0.8927], grad_fn=<SelectBackward0>)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        discrete: bool = False,
        depth: int = 3,
        num_cells: int = 1024,
        min_scale: float = 0.1,
        max_scale: float = 1.0,
        unimix: float = 0.01,
        device: Device = None,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        self.discrete = discrete
        self.unimix = as_number(unimix, owner, "unimix", least=0, below=1)
        self.min_scale = as_number(min_scale, owner, "min_scale", least=0)
        self.max_scale = as_number(max_scale, owner, "max_scale", above=self.min_scale)
        width = out_features if discrete else 2 * out_features
        self.net = DreamerV3MLP(in_features, width, depth, num_cells, outscale=0.01, device=device)

    def forward(self, *features: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return the parameters of the action's distribution."""
        out = self.net(*features)
        if self.discrete:
            return unimix_logits(out, self.unimix)
        mean, raw = out.chunk(2, -1)
        return mean.tanh(), (self.max_scale - self.min_scale) * (raw + 2).sigmoid() + self.min_scale


class ObsEncoder(nn.Module):
    """Convolutional encoder of Dreamer.

    Ha and Schmidhuber, "World models", 2018, appendix A: strided convolutions, whose channels double.

    Args:
        channels: Channels of the first convolution.
        num_layers: Number of convolutions.
        in_channels: Channels of the image; found out at the first call if None.
        device: Device of the parameters.

    Shapes: ``[*B, C, H, W]`` to ``[*B, e]``.

    Raises:
        ArgumentError: If there is no convolution.

    Example:
        >>> ObsEncoder(channels=4)(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 128])
    """

    def __init__(
        self, channels: int = 32, num_layers: int = 4, in_channels: int | None = None, device: Device = None
    ) -> None:
        super().__init__()
        num_layers = as_integer(num_layers, "ObsEncoder", "num_layers", least=1)
        layers: list[nn.Module] = []
        for index in range(num_layers):
            width = channels * 2**index
            before = in_channels if index == 0 else width // 2
            layers += [
                nn.LazyConv2d(width, 4, stride=2, device=device)
                if before is None
                else nn.Conv2d(before, width, 4, stride=2, device=device),
                nn.ReLU(),
            ]
        self.encoder = nn.Sequential(*layers)

    def forward(self, observation: Tensor) -> Tensor:
        """Return the features of images."""
        batch = observation.shape[:-3]
        return self.encoder(observation.reshape(-1, *observation.shape[-3:])).reshape(*batch, -1)


class ObsDecoder(nn.Module):
    """Convolutional decoder of Dreamer.

    Ha and Schmidhuber, "World models", 2018, appendix A.

    Args:
        channels: Channels of the last but one layer.
        num_layers: Number of transposed convolutions.
        kernel_sizes: Kernel of each layer, or one for all; 5, 5, 6, 6 for four layers, else 5.
        latent_dim: Width of state and belief together; found out at the first call if None.
        out_channels: Channels of the image.
        device: Device of the parameters.

    Shapes: state and belief ``[*B, .]`` to ``[*B, out_channels, H, W]``; 64 x 64 with four layers.

    Raises:
        ArgumentError: If there is no layer, or the number of kernels differs.

    Example:
        >>> ObsDecoder(channels=4)(torch.zeros(2, 5), torch.zeros(2, 6)).shape
        torch.Size([2, 3, 64, 64])
    """

    def __init__(
        self,
        channels: int = 32,
        num_layers: int = 4,
        kernel_sizes: int | Sequence[int] | None = None,
        latent_dim: int | None = None,
        out_channels: int = 3,
        device: Device = None,
    ) -> None:
        super().__init__()
        num_layers = as_integer(num_layers, "ObsDecoder", "num_layers", least=1)
        if kernel_sizes is None:
            kernel_sizes = [5, 5, 6, 6] if num_layers == 4 else 5
        kernels = [kernel_sizes] * num_layers if isinstance(kernel_sizes, int) else list(kernel_sizes)
        if len(kernels) != num_layers:
            raise ArgumentError(f"ObsDecoder got {len(kernels)} kernel_sizes for {num_layers} layers: pass one of each")
        width = channels * 8 * 2 * 2
        first = (
            nn.LazyLinear(width, device=device) if latent_dim is None else nn.Linear(latent_dim, width, device=device)
        )
        self.state_to_latent = nn.Sequential(first, nn.ReLU())
        widths = [channels * 2**index for index in reversed(range(num_layers - 1))] + [out_channels]
        layers: list[nn.Module] = []
        for after, kernel in zip(widths, kernels, strict=True):
            layers += [nn.ConvTranspose2d(width, after, kernel, stride=2, device=device), nn.ReLU()]
            width = after
        self.decoder = nn.Sequential(*layers[:-1])

    def forward(self, state: Tensor, rnn_hidden: Tensor) -> Tensor:
        """Return images of states and beliefs."""
        latent = self.state_to_latent(torch.cat((state, rnn_hidden), -1))
        images = self.decoder(latent.reshape(-1, latent.shape[-1], 1, 1))
        return images.reshape(*latent.shape[:-1], *images.shape[1:])


def _convolution(in_channels: int, out_channels: int, kernel: int, device: Device) -> nn.Conv2d:
    conv = nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, device=device)
    init_weight(conv.weight, in_channels * kernel * kernel)
    assert conv.bias is not None
    nn.init.zeros_(conv.bias)
    return conv


class DreamerV3Encoder(nn.Module):
    """Encoder of DreamerV3, of vectors, images, or both.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, section "World model learning".
    Vectors: symlog and hidden layers. Images: convolutions with max-pooling; bytes are divided by 255.

    Args:
        vector_dim: Width of the vector; 0 without one.
        image_shape: Channels, height and width of the image, the latter two multiples of 16; None without one.
        depth: Channels of the convolutions, before the factors 2, 3, 4 and 4.
        units: Width of the hidden layers.
        num_layers: Number of hidden layers of vectors.
        kernel: Size of the convolutions, odd.
        device: Device of the parameters.

    Attributes:
        out_features: Width of the output.

    Shapes: vector ``[*B, vector_dim]`` or image ``[*B, C, H, W]``, or both in this order, to ``[*B, out_features]``.

    Raises:
        ArgumentError: If there is neither vector nor image, or the size of the image is no multiple of 16.
        ShapeError: In the call, if the number of inputs differs.

    Example:
        >>> encoder = DreamerV3Encoder(3, (3, 64, 64), depth=4, units=64)
        >>> encoder(torch.zeros(2, 5, 3), torch.zeros(2, 5, 3, 64, 64)).shape
        torch.Size([2, 5, 320])
    """

    def __init__(
        self,
        vector_dim: int = 0,
        image_shape: Sequence[int] | None = None,
        *,
        depth: int = 64,
        units: int = 1024,
        num_layers: int = 3,
        kernel: int = 5,
        device: Device = None,
    ) -> None:
        super().__init__()
        if not vector_dim and image_shape is None:
            raise ArgumentError("DreamerV3Encoder encodes a vector, an image, or both: pass vector_dim or image_shape")
        self.vector = hidden_layers(vector_dim, units, num_layers, device=device) if vector_dim else None
        self.image: nn.Sequential | None = None
        self.out_features = units if vector_dim else 0
        if image_shape is not None:
            channels, height, width = _image_shape("DreamerV3Encoder", image_shape)
            layers: list[nn.Module] = []
            for factor in _FACTORS:
                layers += [_convolution(channels, depth * factor, kernel, device), nn.MaxPool2d(2)]
                layers += [RMSNorm(depth * factor, dim=-3, device=device), nn.SiLU()]
                channels = depth * factor
            self.image = nn.Sequential(*layers)
            self.out_features += channels * (height // 16) * (width // 16)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the features."""
        wanted = [part for part in (self.vector, self.image) if part is not None]
        if len(inputs) != len(wanted):
            raise ShapeError(f"DreamerV3Encoder takes {len(wanted)} inputs, vector before image, got {len(inputs)}")
        found: list[Tensor] = []
        for part, x in zip(wanted, inputs, strict=True):
            if part is self.vector:
                found.append(part(symlog(x)))
                continue
            pixels = (x / 255 if x.dtype is torch.uint8 else x) - 0.5
            found.append(part(pixels.reshape(-1, *x.shape[-3:])).reshape(*x.shape[:-3], -1))
        return found[0] if len(found) == 1 else torch.cat(found, -1)


_FACTORS = (2, 3, 4, 4)


def _image_shape(owner: str, shape: Sequence[int]) -> tuple[int, int, int]:
    if len(shape) != 3 or shape[1] % 16 or shape[2] % 16 or min(shape) < 1:
        raise ArgumentError(
            f"{owner}: image_shape is channels, height and width, of which the last two are multiples of 16, got"
            f" {tuple(shape)}"
        )
    return shape[0], shape[1], shape[2]


class DreamerV3ImageDecoder(nn.Module):
    """Decoder of images of DreamerV3: a block-wise projection to a small image, and convolutions on enlarged ones.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, section "World model learning".
    Of vectors, the decoder is a `DreamerV3MLP` with three hidden layers; of both, there is one decoder of each.

    Args:
        state_dim: Width of the state.
        belief_dim: Width of the belief, a multiple of `num_blocks`.
        image_shape: Channels, height and width of the image, the latter two multiples of 16.
        depth: Channels of the convolutions, before the factors 4, 4, 3 and 2.
        units: Half the width of the hidden layer of the state.
        kernel: Size of the convolutions, odd.
        num_blocks: Number of blocks of the projection.
        device: Device of the parameters.

    Shapes: state and belief ``[*B, .]`` to pixels in (0, 1), ``[*B, C, H, W]``.

    Raises:
        ArgumentError: If the size of the image is no multiple of 16.

    Example:
        >>> DreamerV3ImageDecoder(8, 16, (3, 32, 32), depth=4, units=8)(torch.zeros(2, 8), torch.zeros(2, 16)).shape
        torch.Size([2, 3, 32, 32])
    """

    def __init__(
        self,
        state_dim: int,
        belief_dim: int,
        image_shape: Sequence[int],
        *,
        depth: int = 64,
        units: int = 1024,
        kernel: int = 5,
        num_blocks: int = 8,
        device: Device = None,
    ) -> None:
        super().__init__()
        channels, height, width = _image_shape("DreamerV3ImageDecoder", image_shape)
        widths = [depth * factor for factor in reversed(_FACTORS)]
        self.small, self.num_blocks = (widths[0], height // 16, width // 16), num_blocks
        size = math.prod(self.small)
        self.belief_projection = BlockLinear(belief_dim, size, num_blocks, device)
        self.state_projection = nn.Sequential(
            hidden_layers(state_dim, 2 * units, 1, device=device), DreamerLinear(2 * units, size, device=device)
        )
        layers: list[nn.Module] = [RMSNorm(widths[0], dim=-3, device=device), nn.SiLU()]
        for before, after in pairwise(widths):
            layers += [nn.Upsample(scale_factor=2), _convolution(before, after, kernel, device)]
            layers += [RMSNorm(after, dim=-3, device=device), nn.SiLU()]
        layers += [nn.Upsample(scale_factor=2), _convolution(widths[-1], channels, kernel, device), nn.Sigmoid()]
        self.decoder = nn.Sequential(*layers)

    def forward(self, state: Tensor, belief: Tensor) -> Tensor:
        """Return images of states and beliefs."""
        channels, height, width = self.small
        flat = belief.reshape(-1, belief.shape[-1])
        # Each block of the belief draws some of the channels of the entire small image.
        blocks = self.belief_projection(flat).view(-1, self.num_blocks, channels // self.num_blocks, height, width)
        small = blocks.flatten(1, 2) + self.state_projection(state.reshape(-1, state.shape[-1])).view(-1, *self.small)
        images = self.decoder(small)
        return images.view(*belief.shape[:-1], *images.shape[1:])
