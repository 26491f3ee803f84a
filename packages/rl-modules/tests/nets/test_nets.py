import numpy as np
import pytest
import torch
from tensordict.nn import NormalParamExtractor as Theirs
from torch import nn
from torch.testing import assert_close

from rl.core.errors import ArgumentError, ShapeError
from rl.modules import (
    GRU,
    LSTM,
    MLP,
    CategoricalHead,
    Conv3dNet,
    ConvNet,
    DuelingMlpDQNet,
    MultiAgentMLP,
    NormalHead,
    NormalParamExtractor,
    SquashDims,
    orthogonal_init,
)


def kinds(net):
    return [type(layer).__name__ for layer in net]


def test_mlp_equals_the_layers_by_hand():
    torch.manual_seed(0)
    net = MLP(3, 2, [5, 4], activation_class=nn.ReLU)
    a, b, c = (layer for layer in net if isinstance(layer, nn.Linear))
    x = torch.randn(2, 6, 3)
    assert_close(net(x), c(b(a(x).relu()).relu()))
    assert (a.out_features, b.out_features, c.out_features) == (5, 4, 2)


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        pytest.param({"num_cells": [8, 8]}, "Linear Tanh Linear Tanh Linear", id="list"),
        pytest.param({"num_cells": 8, "depth": 1}, "Linear Tanh Linear", id="width-and-depth"),
        pytest.param({"num_cells": 8}, "Linear Tanh Linear Tanh Linear Tanh Linear", id="depth-3-by-default"),
        pytest.param({"depth": 0}, "Linear", id="depth-0"),
        pytest.param({"num_cells": [8], "activate_last_layer": True}, "Linear Tanh Linear Tanh", id="activated"),
        pytest.param({"num_cells": [8], "dropout": 0.5}, "Linear Tanh Dropout Linear", id="dropout"),
        pytest.param({"num_cells": [8], "norm_class": nn.LayerNorm}, "Linear LayerNorm Tanh Linear", id="norm"),
        pytest.param(
            {"depth": 1, "activation_class": nn.ELU, "activation_kwargs": {"alpha": 2.0}}, "Linear ELU Linear", id="elu"
        ),
        pytest.param({"in_features": None, "num_cells": [8]}, "LazyLinear Tanh Linear", id="lazy"),
    ],
)
def test_layers_of_mlp(kwargs, expected):
    net = MLP(**{"in_features": 4, "out_features": 2, **kwargs})
    assert kinds(net) == expected.split()
    assert net(torch.zeros(7, 4)).shape == (7, 2)


def test_mlp_details():
    assert MLP(4, 2, [8], bias_last_layer=False)[-1].bias is None
    assert MLP(4, num_cells=[8, 3])(torch.zeros(4)).shape == (3,)
    assert MLP(5, (2, 3), [8])(torch.zeros(7, 2), torch.zeros(7, 3)).shape == (7, 2, 3)
    assert kinds(MLP(4, 2, [8])[:1]) == ["Linear"]
    assert MLP(4, 2, device="meta")[0].weight.device.type == "meta"
    wide = MLP(4, 2, [8], layer_class=nn.Linear, layer_kwargs={"dtype": torch.float64})
    assert wide(torch.zeros(4, dtype=torch.float64)).dtype is torch.float64
    ridged = MLP(4, 2, [8], norm_class=nn.LayerNorm, norm_kwargs={"eps": 0.5})
    assert ridged[1].eps == 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: MLP(4, 2, [8], depth=2), "depth=2 and 1 num_cells", id="depth"),
        pytest.param(lambda: MLP(4, depth=0), "out_features", id="no-output"),
        pytest.param(lambda: MLP(None, 2, layer_class=nn.Bilinear), "Bilinear", id="lazy-of-unknown"),
        pytest.param(lambda: ConvNet(3, num_cells=[8, 8], strides=[1]), "num_cells.: 2.*strides.: 1", id="conv-lists"),
        pytest.param(lambda: NormalHead(3, 2, scale_init=0.0), "scale_init", id="head"),
        pytest.param(lambda: NormalParamExtractor("sofplus"), "sofplus", id="mapping"),
        pytest.param(lambda: NormalParamExtractor("biased_softplus_x"), "numbers", id="mapping-number"),
        pytest.param(lambda: NormalParamExtractor("biased_softplus_0.1_0.5"), "between", id="mapping-order"),
    ],
)
def test_contradictions_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize(
    ("net", "shape", "message"),
    [
        pytest.param(MLP(4, 2), (3, 5), r"in_features=4.*\(3, 5\)", id="mlp"),
        pytest.param(ConvNet(3), (4, 1, 8, 8), r"\[\*B, 3, H, W\].*\(4, 1, 8, 8\)", id="conv-channels"),
        pytest.param(ConvNet(), (8, 8), r"\(8, 8\)", id="conv-dims"),
        pytest.param(NormalParamExtractor(), (2, 3), r"\(2, 3\)", id="extractor"),
    ],
)
def test_wrong_shapes_are_named(net, shape, message):
    with pytest.raises(ShapeError, match=message):
        net(torch.zeros(shape))


def test_integer_pixels_are_refused():
    with pytest.raises(ShapeError, match="uint8"):
        ConvNet(3)(torch.zeros(3, 8, 8, dtype=torch.uint8))


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)], ids=str)
def test_convnet_equals_the_layers_by_hand_for_any_batch(batch):
    torch.manual_seed(0)
    net = ConvNet(num_cells=[6, 5], kernel_sizes=[4, (3, 2)], strides=[2, 1], paddings=[1, 0])
    x = torch.randn(*batch, 3, 12, 14)
    out = net(x)
    first, second = (layer for layer in net if isinstance(layer, nn.Conv2d))
    flat = x.reshape(-1, 3, 12, 14)
    expected = nn.functional.elu(second(nn.functional.elu(first(flat)))).flatten(1)
    assert_close(out, expected.reshape(*batch, -1))


def test_convnet_details():
    net = ConvNet(3, num_cells=[4, 4], norm_class=nn.BatchNorm2d, bias_last_layer=False, activation_class=nn.ReLU)
    assert kinds(net) == ["Conv2d", "BatchNorm2d", "ReLU", "Conv2d", "BatchNorm2d", "ReLU", "Flatten"]
    assert net[3].bias is None
    assert kinds(ConvNet(3, depth=2)).count("Conv2d") == 2
    pooled = ConvNet(3, num_cells=[4], aggregator_class=nn.AdaptiveAvgPool2d, aggregator_kwargs={"output_size": 1})
    assert pooled(torch.zeros(2, 3, 9, 9)).shape == (2, 4, 1, 1)
    assert ConvNet(3, num_cells=[4], kernel_sizes=(3, 5))(torch.zeros(1, 3, 5, 5)).shape == (1, 12)


@pytest.mark.parametrize(
    "mapping", ["softplus", "exp", "relu", "biased_softplus", "biased_softplus_0.5", "biased_softplus_1.0"]
)
def test_extractor_agrees_with_tensordict(mapping):
    x = torch.linspace(-5, 5, 24, dtype=torch.float64).reshape(3, 8)
    for ours, theirs in zip(NormalParamExtractor(mapping)(x), Theirs(mapping)(x), strict=True):
        assert_close(ours, theirs, atol=1e-7, rtol=1e-7)  # theirs shifts in single precision


def test_expln_is_smooth_at_zero():
    x = torch.tensor([0.0, -1e-9, 1e-9, 3.0, -2.0], dtype=torch.float64, requires_grad=True)
    _, scale = NormalParamExtractor("expln")(torch.stack([x, x], -1))
    expected = torch.tensor([1.0, 1.0, 1.0, 1 + torch.tensor(4.0).log(), torch.tensor(-2.0).exp()], dtype=torch.float64)
    assert_close(scale.squeeze(-1), expected, atol=1e-6, rtol=0)
    (grad,) = torch.autograd.grad(scale.sum(), x)
    assert_close(grad[:3], torch.ones(3, dtype=torch.float64), atol=1e-6, rtol=0)  # the same from both sides


@pytest.mark.parametrize("state_dependent", [False, True])
def test_normal_head(state_dependent):
    torch.manual_seed(0)
    head = NormalHead(8, 2, state_dependent=state_dependent, scale_init=0.6, scale_lb=0.1)
    loc, scale = head(torch.zeros(3, 8))
    assert_close(scale, torch.full((3, 2), 0.6))
    assert_close(loc, torch.zeros(3, 2))
    loc, scale = head(1000 * torch.randn(50, 8))
    assert (scale >= 0.1).all()
    assert (scale.std() > 0.01) == state_dependent
    scale.sum().backward()
    assert any(p.grad is not None and p.grad.norm() > 0 for p in head.parameters())


def test_categorical_head_starts_nearly_uniform():
    probs = CategoricalHead(16, 5)(torch.randn(100, 16)).softmax(-1)
    assert (probs - 0.2).abs().max() < 0.05


def test_orthogonal_init():
    net = orthogonal_init(MLP(4, 3, [16]), gain=2.0, last_gain=0.5)
    first, last = net[0], net[-1]
    assert_close(first.weight.T @ first.weight, 4 * torch.eye(4), atol=1e-5, rtol=0)
    assert_close(last.weight @ last.weight.T, 0.25 * torch.eye(3), atol=1e-5, rtol=0)
    assert not first.bias.any()
    with pytest.raises(ArgumentError, match=r"LazyLinear.*call the network once"):
        orthogonal_init(MLP(None, 2))


def test_kwargs_of_each_layer():
    net = MLP(4, 2, [8], layer_kwargs=[{"bias": False}, {"dtype": torch.float32}])
    assert net[0].bias is None
    assert net[-1].bias is not None
    with pytest.raises(ArgumentError, match="MLP got 1 layer_kwargs for 2 layers"):
        MLP(4, 2, [8], layer_kwargs=[{}])


NORMS = [
    pytest.param(nn.LayerNorm, {"eps": 0.5}, "normalized_shape", (5,), id="layer"),
    pytest.param(nn.BatchNorm1d, {"eps": 0.5}, "num_features", 5, id="batch"),
    pytest.param(nn.BatchNorm1d, {"num_features": 5, "eps": 0.5}, "num_features", 5, id="width-given"),
    pytest.param(nn.GroupNorm, {"num_groups": 1, "eps": 0.5}, "num_channels", 5, id="group"),
    pytest.param(nn.LazyBatchNorm1d, {"eps": 0.5}, "num_features", 5, id="lazy"),
    pytest.param(lambda n, /, **kwargs: nn.BatchNorm1d(n, **kwargs), {"eps": 0.5}, "num_features", 5, id="function"),
]


@pytest.mark.parametrize(("norm_class", "kwargs", "name", "width"), NORMS)
def test_a_norm_gets_its_width_and_nothing_else(norm_class, kwargs, name, width):
    torch.manual_seed(0)
    net = MLP(3, 2, [5], norm_class=norm_class, norm_kwargs=kwargs)
    x = torch.randn(6, 3)
    net(x)
    norm = net[1]
    assert getattr(norm, name) == width
    assert norm.eps == 0.5
    assert_close(net(x), net[3](norm(net[0](x)).tanh()))


def test_a_lazy_norm_of_a_convnet_has_the_usual_eps():
    net = ConvNet(3, num_cells=[6], norm_class=nn.LazyBatchNorm2d)
    net(torch.randn(2, 3, 5, 5))
    assert (net[1].num_features, net[1].eps) == (6, nn.BatchNorm2d(6).eps)


def test_a_norm_with_two_open_arguments_is_refused():
    with pytest.raises(ArgumentError, match=r"MLP: GroupNorm needs \['num_groups', 'num_channels'\].*norm_kwargs"):
        MLP(3, 2, [5], norm_class=nn.GroupNorm)


def test_each_layer_may_have_arguments_of_its_own():
    slopes = [{"alpha": 1.0}, {"alpha": 2.0}]
    rates = [{"eps": 0.1}, {"eps": 0.2}]
    for net in (
        MLP(
            3, 2, [4, 5], activation_class=nn.ELU, activation_kwargs=slopes, norm_class=nn.LayerNorm, norm_kwargs=rates
        ),
        ConvNet(3, num_cells=[4, 5], activation_kwargs=slopes, norm_class=nn.BatchNorm2d, norm_kwargs=rates),
        Conv3dNet(3, num_cells=[4, 5], activation_kwargs=slopes, norm_class=nn.BatchNorm3d, norm_kwargs=rates),
    ):
        assert [layer.alpha for layer in net if isinstance(layer, nn.ELU)] == [1.0, 2.0]
        assert [layer.eps for layer in net if hasattr(layer, "eps")] == [0.1, 0.2]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (MLP(3, 2, [8, 8]), (5, 3)),
        (MLP(3, 2, [8], activation_class=nn.ReLU), (5, 3)),
        (DuelingMlpDQNet(3, 1, {"in_features": 4, "num_cells": [8]}, {"in_features": 8, "num_cells": [8]}), (5, 4)),
        (MultiAgentMLP(3, 2, 2, centralized=False, share_params=False, depth=1), (5, 2, 3)),
        (ConvNet(3, num_cells=[4]), (2, 3, 8, 8)),
    ],
)
def test_networks_are_traced_while_gradients_are_recorded(net, shape):
    x = torch.randn(shape)
    traced = torch.jit.trace(net, x)
    assert_close(traced(x), net(x))


def test_the_last_dimensions_are_squashed():
    x = torch.arange(24.0).view(2, 3, 4)
    assert torch.equal(SquashDims(2)(x), x.view(2, 12))
    assert torch.equal(SquashDims()(x), x.view(24))
    net = ConvNet(3, num_cells=[4], aggregator_class=SquashDims, aggregator_kwargs={"ndims_in": 3})
    assert torch.equal(net(torch.ones(2, 3, 8, 8)), net[:-1](torch.ones(2, 3, 8, 8)).view(2, -1))
    with pytest.raises(ShapeError, match=r"last 3 dimensions, got \(3, 4\)"):
        SquashDims()(x[0])


def test_the_network_of_atari_games_has_the_sizes_of_the_paper():
    net = ConvNet.default_atari_dqn(6)
    assert net(torch.zeros(2, 4, 84, 84)).shape == (2, 6)
    weights = [tuple(p.shape) for p in net.parameters() if p.ndim > 1]
    assert weights == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 3136), (6, 512)]


@pytest.mark.parametrize("n", [np.int64(4), np.array(4), torch.tensor(4)], ids=["numpy", "array", "tensor"])
def test_integers_of_other_libraries_are_widths(n):
    torch.manual_seed(0)
    nets = {
        "mlp": (MLP(n, (n, n), [n, n], depth=torch.tensor(2)), (2, 4), (2, 4, 4)),
        "one-width": (MLP(n, n, n, n), (2, 4), (2, 4)),
        "array": (MLP(4, 4, np.array([4, 4])), (2, 4), (2, 4)),
        "conv": (ConvNet(n, n, n, kernel_sizes=(n, n), paddings=n), (2, 4, 7, 7), (2, 2916)),
        "conv-lists": (ConvNet(n, num_cells=np.array([4]), kernel_sizes=[n], strides=[(n, n)]), (2, 4, 8, 8), (2, 16)),
        "categorical": (CategoricalHead(n, n), (2, 4), (2, 4)),
    }
    for net, shape, expected in nets.values():
        assert net(torch.zeros(shape)).shape == expected
    assert type(nets["one-width"][0].out_features) is int
    for state_dependent in (False, True):
        assert NormalHead(n, n, state_dependent=state_dependent)(torch.zeros(2, 4))[0].shape == (2, 4)
    assert GRU(n, n, n)(torch.zeros(2, 3, 4))[1].shape == (4, 2, 4)
    assert LSTM(n, n)(torch.zeros(2, 3, 4))[0].shape == (2, 3, 4)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: MLP(n, 2),
        lambda n: MLP(2, n),
        lambda n: MLP(2, (2, n)),
        lambda n: MLP(2, 2, n),
        lambda n: MLP(2, 2, [n]),
        lambda n: MLP(2, 2, depth=n),
        ConvNet,
        lambda n: ConvNet(3, n),
        lambda n: ConvNet(3, num_cells=[n]),
        lambda n: ConvNet(3, kernel_sizes=(3, n)),
        lambda n: ConvNet(3, strides=n),
        lambda n: CategoricalHead(3, n),
        lambda n: NormalHead(n, 3),
        lambda n: GRU(3, n),
        lambda n: LSTM(3, 3, n),
    ],
)
@pytest.mark.parametrize("n", [True, 2.0, "2"], ids=repr)
def test_what_is_no_integer_is_no_width(make, n):
    with pytest.raises(ArgumentError, match="must be an integer, got"):
        make(n)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool])
def test_inputs_of_another_dtype_are_refused_with_the_remedy(dtype):
    with pytest.raises(ShapeError, match=r"MLP got inputs of torch\.\w+, and its weights are torch.float32: convert"):
        MLP(3, 2)(torch.zeros(4, 3, dtype=dtype))
    assert MLP(3, 2).double()(torch.zeros(4, 3, dtype=torch.float64)).dtype is torch.float64
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert MLP(3, 2)(torch.zeros(4, 3, dtype=torch.bfloat16)).dtype is torch.bfloat16
