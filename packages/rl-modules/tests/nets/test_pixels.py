"""Networks on images and volumes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from rl.core.errors import ArgumentError, ShapeError
from rl.modules import Conv3dNet, ImageEncoder, ImpalaNet


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)], ids=str)
def test_conv3d_equals_the_layers_by_hand(batch):
    torch.manual_seed(0)
    net = Conv3dNet(num_cells=[5, 4], kernel_sizes=[3, (1, 2, 3)], strides=[2, 1], paddings=[1, 0])
    x = torch.randn(*batch, 2, 7, 8, 9)
    out = net(x)
    first, second = (layer for layer in net if isinstance(layer, nn.Conv3d))
    expected = F.elu(second(F.elu(first(x.reshape(-1, 2, 7, 8, 9))))).flatten(1)
    assert_close(out, expected.reshape(*batch, -1))


def test_conv3d_names_itself():
    with pytest.raises(ShapeError, match=r"Conv3dNet expects pixels \[\*B, 3, D, H, W\], got \(4, 8, 8\)"):
        Conv3dNet(3)(torch.zeros(4, 8, 8))
    with pytest.raises(ArgumentError, match="Conv3dNet: one entry per convolution"):
        Conv3dNet(3, num_cells=[4, 4], strides=[1])


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)], ids=str)
@pytest.mark.parametrize("in_features", [None, 3])
def test_impala_equals_the_figure_by_hand(batch, in_features):
    torch.manual_seed(0)
    net = ImpalaNet(in_features, (4, 6), out_features=10)
    x = torch.randn(*batch, 3, 12, 12)
    out = net(x)
    convs = iter([layer for layer in net.modules() if isinstance(layer, nn.Conv2d)])
    y = x.reshape(-1, 3, 12, 12)
    for _ in range(2):
        y = F.max_pool2d(next(convs)(y), 3, 2, 1)
        for _ in range(2):
            a, b = next(convs), next(convs)
            y = y + b(F.relu(a(F.relu(y))))
    dense = next(layer for layer in net.modules() if isinstance(layer, nn.Linear))
    assert_close(out, F.relu(dense(F.relu(y).flatten(1))).reshape(*batch, 10))


def test_impala_has_the_size_of_the_paper():
    net = ImpalaNet(4)
    assert net(torch.zeros(2, 4, 84, 84)).shape == (2, 256)
    convs = sum(isinstance(layer, nn.Conv2d) for layer in net.modules())
    assert convs == 15  # the figure: 15 convolutional layers
    assert net.head[2].in_features == 32 * 11 * 11


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ImpalaNet(channels=()), ArgumentError, "at least one section"),
        (lambda: ImpalaNet(3)(torch.zeros(2, 4, 8, 8)), ShapeError, r"\[\*B, 3, H, W\], got \(2, 4, 8, 8\)"),
        (lambda: ImpalaNet(3)(torch.zeros(3, 8, 8, dtype=torch.uint8)), ShapeError, "uint8"),
    ],
)
def test_impala_refuses(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("size", [84, 40, 7])
@pytest.mark.parametrize("channels_last", [False, True])
def test_image_encoder_equals_the_layers_by_hand(size, channels_last):
    torch.manual_seed(0)
    shape = (size, size, 3) if channels_last else (3, size, size)
    encoder = ImageEncoder(shape, channels_last=channels_last, scale=1 / 255)
    image = torch.randint(256, (2, *shape), dtype=torch.uint8)
    x = (image.permute(0, 3, 1, 2) if channels_last else image).float() / 255
    strides = [4, 2, 1] if size >= 36 else [1, 1]
    layers = [layer for layer in encoder.modules() if isinstance(layer, nn.Conv2d)]
    for layer, stride in zip(layers, strides, strict=True):
        x = F.relu(F.conv2d(x, layer.weight, layer.bias, stride))
    assert_close(encoder(image), x.flatten(1))
    assert encoder.out_features == x[0].numel()


@pytest.mark.parametrize("shape", [(84, 84), (3, 2, 84), (3, 84, 2)])
def test_image_encoder_names_a_shape_that_is_no_image(shape):
    with pytest.raises(ArgumentError, match=r"shape must be \(C, H, W\) with H and W of at least 3"):
        ImageEncoder(shape)
