"""Convolutional networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rl.core.arguments import as_integer, foreign_arguments
from rl.core.errors import ArgumentError, ShapeError
from rl.modules.nets._mlp import MLP, Options, is_list, make_activation, make_norm, per_layer

Maker = Any  # a class of modules, called with arguments that differ from class to class
Size = int | tuple[int, ...]


class SquashDims(nn.Module):
    """Flatten the last dimensions into one.

    Args:
        ndims_in: Number of dimensions.

    Raises:
        ArgumentError: if `ndims_in` is below 1.
        ShapeError: in the call, if the input has fewer dimensions.

    Example:
        >>> SquashDims()(torch.zeros(1, 2, 3, 4)).shape
        torch.Size([1, 24])
    """

    def __init__(self, ndims_in: int = 3) -> None:
        super().__init__()
        self.ndims_in = as_integer(ndims_in, "SquashDims", "ndims_in", least=1)

    def forward(self, value: Tensor) -> Tensor:
        """Values with one dimension in place of the last `ndims_in`."""
        if value.ndim < self.ndims_in:
            raise ShapeError(f"SquashDims flattens the last {self.ndims_in} dimensions, got {tuple(value.shape)}")
        return value.flatten(-self.ndims_in, -1)

    def extra_repr(self) -> str:
        return f"ndims_in={self.ndims_in}"


class _Convolutions(nn.Sequential):
    """Convolutions with activations; a subclass says of how many dimensions."""

    row_wise = True
    """Images of a batch do not see each other, unless a layer lets them: a loss may pass a batch in parts."""

    _sizes: ClassVar[tuple[str, ...]]
    _layer_class: ClassVar[Maker]
    _lazy_class: ClassVar[Maker]

    def __init__(  # noqa: PLR0913  the names that users of TorchRL know
        self,
        in_features: int | None = None,
        depth: int | None = None,
        num_cells: int | Sequence[int] | None = None,
        kernel_sizes: Size | Sequence[Size] = 3,
        strides: Size | Sequence[Size] = 1,
        paddings: Size | Sequence[Size] = 0,
        activation_class: Maker = nn.ELU,
        activation_kwargs: Options = None,
        *,
        norm_class: Maker | None = None,
        norm_kwargs: Options = None,
        bias_last_layer: bool = True,
        aggregator_class: Maker | None = None,
        aggregator_kwargs: dict[str, Any] | None = None,
        groups: int = 1,
        device: torch.device | str | None = None,
    ) -> None:
        if num_cells is None:
            num_cells = [32, 32, 32] if depth is None else 32
        owner = str(type(self).__name__)
        if in_features is not None:
            in_features = as_integer(in_features, owner, "in_features", least=1)
        lists = {
            "num_cells": num_cells,
            "kernel_sizes": kernel_sizes,
            "strides": strides,
            "paddings": paddings,
        }
        cells, kernels, steps, pads = _align(owner, lists, depth)
        norms = per_layer(owner, "norm_kwargs", norm_kwargs, len(cells))
        activations = per_layer(owner, "activation_kwargs", activation_kwargs, len(cells))
        layers: list[nn.Module] = []
        channels = in_features
        for place, width in enumerate(cells):
            bias = bias_last_layer or place < len(cells) - 1
            options: Any = {
                "kernel_size": kernels[place],
                "stride": steps[place],
                "padding": pads[place],
                "bias": bias,
                "groups": groups,
                "device": device,
            }
            layers.append(
                self._lazy_class(width, **options)
                if channels is None
                else self._layer_class(channels, width, **options)
            )
            if norm_class is not None:
                layers.append(make_norm(owner, norm_class, norms[place], width, device))
            layers.append(make_activation(owner, activation_class, activations[place]))
            channels = width
        flatten = (
            nn.Flatten(-1 - len(self._sizes), -1)
            if aggregator_class is None
            else aggregator_class(**(aggregator_kwargs or {}))
        )
        super().__init__(*layers, flatten)
        self.in_features = in_features

    def forward(self, pixels: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # says what it is
        """Features of images.

        Raises:
            ShapeError: if there are too few dimensions, the channels are not `in_features`, or the
                pixels are integers.
        """
        own = 1 + len(self._sizes)
        if pixels.ndim < own or (self.in_features is not None and pixels.shape[-own] != self.in_features):
            channels = "C" if self.in_features is None else self.in_features
            expected = f"[*B, {channels}, {', '.join(self._sizes)}]"
            raise ShapeError(f"{type(self).__name__} expects pixels {expected}, got {tuple(pixels.shape)}")
        if not pixels.is_floating_point():
            raise ShapeError(
                f"{type(self).__name__} expects floating-point pixels, got {pixels.dtype}: scale them, as by x / 255"
            )
        batch = pixels.shape[:-own]
        x = pixels if len(batch) == 1 else pixels.reshape(-1, *pixels.shape[-own:])
        for layer in self:
            x = layer(x)
        return x if len(batch) == 1 else x.reshape(*batch, *x.shape[1:])

    def __getitem__(self, index: int | slice) -> Any:
        """One layer, or some of them as a plain `torch.nn.Sequential`."""
        layers = list(self)
        return nn.Sequential(*layers[index]) if isinstance(index, slice) else layers[index]


@foreign_arguments()
class ConvNet(_Convolutions):
    """Two-dimensional convolutions with activations, and one flat feature vector in the end.

    Args:
        in_features: Channels of the input; found out at the first call if None.
        depth: Number of convolutions, if it follows from no list.
        num_cells: Channels of each convolution.
        kernel_sizes: Kernel size of each convolution, or one for all.
        strides: Stride of each convolution, or one for all.
        paddings: Padding of each convolution, or one for all.
        activation_class: Class of the activation after each convolution.
        activation_kwargs: Arguments of the activations; a list has those of each.
        norm_class: Class of the normalization before each activation; none if None. The one required argument that
            `norm_kwargs` leaves out is the number of channels; a lazy class has none.
        norm_kwargs: Further arguments of the normalization layers; a list has those of each.
        bias_last_layer: Whether the last convolution has a bias.
        aggregator_class: Class of the module from ``[N, C, H, W]`` to ``[N, F]``; flattens if None.
        aggregator_kwargs: Arguments of the aggregator.
        groups: Number of groups of each convolution, as in `torch.nn.Conv2d`.
        device: Device of the parameters.

    Shapes: floating-point pixels ``[*B, C, H, W]`` to ``[*B, F]``, whatever the number of batch dimensions.

    Raises:
        ArgumentError: if the lists differ in length, or `depth` is negative.

    Example:
        >>> net = ConvNet(num_cells=[32, 64], kernel_sizes=[8, 4], strides=[4, 2])
        >>> net(torch.zeros(4, 3, 84, 84)).shape
        torch.Size([4, 5184])
    """

    _sizes: ClassVar[tuple[str, ...]] = ("H", "W")
    _layer_class: ClassVar[Maker] = nn.Conv2d
    _lazy_class: ClassVar[Maker] = nn.LazyConv2d

    @classmethod
    def default_atari_dqn(cls, num_actions: int) -> nn.Sequential:
        """Build the Q network of Atari games: three convolutions and a hidden layer of 512 features.

        Mnih et al., "Human-level control through deep reinforcement learning", 2015, methods. Its widths are set at the
        first call, as of a `ConvNet` without `in_features`.

        Args:
            num_actions: Number of actions of the game.

        Shapes: floating-point pixels ``[*B, C, 84, 84]`` to values ``[*B, num_actions]``.

        Example:
            >>> ConvNet.default_atari_dqn(6)(torch.zeros(2, 4, 84, 84)).shape
            torch.Size([2, 6])
        """
        convolutions = cls(num_cells=[32, 64, 64], kernel_sizes=[8, 4, 3], strides=[4, 2, 1], activation_class=nn.ReLU)
        return nn.Sequential(convolutions, MLP(out_features=num_actions, num_cells=[512], activation_class=nn.ReLU))


@foreign_arguments()
class Conv3dNet(_Convolutions):
    """Three-dimensional convolutions with activations, and one flat feature vector in the end.

    The arguments are those of `ConvNet`; an `aggregator_class` maps ``[N, C, D, H, W]`` to ``[N, F]``.

    Shapes: floating-point pixels ``[*B, C, D, H, W]`` to ``[*B, F]``, whatever the number of batch dimensions.

    Raises:
        ArgumentError: if the lists differ in length, or `depth` is negative.

    Example:
        >>> net = Conv3dNet(num_cells=[8, 16], kernel_sizes=3, strides=2)
        >>> net(torch.zeros(4, 1, 15, 15, 15)).shape
        torch.Size([4, 432])
    """

    _sizes: ClassVar[tuple[str, ...]] = ("D", "H", "W")
    _layer_class: ClassVar[Maker] = nn.Conv3d
    _lazy_class: ClassVar[Maker] = nn.LazyConv3d


class ImageEncoder(nn.Module):
    """Encoder of images of any size, of bytes or floats, with channels first or last.

    Images of at least 36 x 36 pixels go through the convolutions of Mnih et al., "Human-level control through deep
    reinforcement learning", 2015, smaller ones through two with kernels of 2 x 2, as of grid worlds.

    Args:
        shape: Shape of an image: ``(C, H, W)``, or ``(H, W, C)`` with `channels_last`.
        channels_last: Whether the channels are the last dimension.
        scale: Factor of the pixels before the first convolution: ``1 / 255`` for bytes.

    Attributes:
        out_features: Width F of the features.

    Shapes: ``[*B, *shape]`` of any real dtype to float32 ``[*B, F]``.

    Raises:
        ArgumentError: if `shape` has not three dimensions, or a side is below 3.

    Example:
        >>> encoder = ImageEncoder((84, 84, 3), channels_last=True, scale=1 / 255)
        >>> encoder(torch.zeros(5, 84, 84, 3, dtype=torch.uint8)).shape
        torch.Size([5, 3136])
    """

    def __init__(self, shape: Sequence[int], *, channels_last: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        sizes = [as_integer(size, "ImageEncoder", "an entry of shape", least=1) for size in shape]
        if len(sizes) != 3 or min(sizes[:2] if channels_last else sizes[1:]) < 3:
            layout = "(H, W, C)" if channels_last else "(C, H, W)"
            raise ArgumentError(f"ImageEncoder: shape must be {layout} with H and W of at least 3, got {tuple(shape)}")
        height, width, channels = sizes if channels_last else (*sizes[1:], sizes[0])
        self.channels_last, self.scale = channels_last, scale
        large = min(height, width) >= 36
        self.conv = ConvNet(
            channels,
            num_cells=[32, 64, 64] if large else [16, 32],
            kernel_sizes=[8, 4, 3] if large else [2, 2],
            strides=[4, 2, 1] if large else [1, 1],
            activation_class=nn.ReLU,
        )
        with torch.no_grad():
            self.out_features = self.conv(torch.zeros(1, channels, height, width)).shape[-1]

    def forward(self, image: Tensor) -> Tensor:
        """Return the features of images."""
        image = image.movedim(-1, -3) if self.channels_last else image
        return self.conv(image.to(torch.float32) * self.scale)


def _align(owner: str, lists: dict[str, Any], depth: int | None) -> list[list[Any]]:
    """Each as a list of one length; a tuple of kernel sizes, strides or paddings has one entry for each dimension."""
    per_layer = {name: is_list(v) and (name == "num_cells" or not isinstance(v, tuple)) for name, v in lists.items()}
    lengths = {name: len(value) for name, value in lists.items() if per_layer[name]}
    if depth is not None:
        lengths["depth"] = as_integer(depth, owner, "depth", least=0)
    if len(set(lengths.values())) > 1:
        raise ArgumentError(f"{owner}: one entry per convolution is needed, got {lengths}")
    count = next(iter(lengths.values()), 3)
    return [
        [_sizes(owner, one, name) for one in (value if per_layer[name] else [value] * count)]
        for name, value in lists.items()
    ]


def _sizes(owner: str, value: Any, name: str) -> Any:
    """One entry: an integer, one for each dimension, or the name of a padding."""
    if isinstance(value, str) and name == "paddings":
        return value
    if is_list(value):
        return tuple(as_integer(one, owner, name, least=0) for one in value)
    return as_integer(value, owner, name, least=0)
