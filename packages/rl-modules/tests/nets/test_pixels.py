"""Networks on images and volumes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from rl.core.errors import ShapeError, SpecError
from rl.modules import Conv3dNet, ImpalaNet


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
    with pytest.raises(SpecError, match="Conv3dNet: one entry per convolution"):
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
        (lambda: ImpalaNet(channels=()), SpecError, "at least one section"),
        (lambda: ImpalaNet(3)(torch.zeros(2, 4, 8, 8)), ShapeError, r"\[\*B, 3, H, W\], got \(2, 4, 8, 8\)"),
        (lambda: ImpalaNet(3)(torch.zeros(3, 8, 8, dtype=torch.uint8)), ShapeError, "uint8"),
    ],
)
def test_impala_refuses(call, error, message):
    with pytest.raises(error, match=message):
        call()
