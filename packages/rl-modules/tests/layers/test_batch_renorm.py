import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rl.core.errors import ArgumentError, ShapeError
from rl.modules import MLP, BatchRenorm1d

F64 = torch.float64


class Reference:
    """Algorithm 1 of the paper, with a running variance, feature by feature."""

    def __init__(self, n, momentum, max_r, max_d):
        self.mean, self.var, self.rate, self.max_r, self.max_d = [0.0] * n, [1.0] * n, momentum, max_r, max_d

    def __call__(self, x, share):
        out = torch.empty_like(x)
        for j in range(x.shape[1]):
            column = x[:, j]
            mean = column.mean()
            var = ((x[:, j] - mean) ** 2).mean()
            std, running = (var + 1e-5).sqrt(), (self.var[j] + 1e-5) ** 0.5
            r = min(max(std.item() / running, 1 / self.max_r), self.max_r)
            d = min(max((mean.item() - self.mean[j]) / running, -self.max_d), self.max_d)
            out[:, j] = (x[:, j] - mean) / std * (1 + share * (r - 1)) + share * d
            self.mean[j] += self.rate * (mean.item() - self.mean[j])
            self.var[j] += self.rate * (var.item() - self.var[j])
        return out


@pytest.mark.parametrize("smooth", [False, True])
def test_training_agrees_with_the_algorithm(smooth):
    torch.manual_seed(0)
    layer = BatchRenorm1d(3, momentum=0.3, max_r=1.5, max_d=0.7, warmup_steps=4, smooth=smooth, dtype=F64)
    reference = Reference(3, 0.3, 1.5, 0.7)
    scale, shift = torch.tensor([0.2, 1.0, 5.0]), torch.tensor([0.1, -3.0, 2.0])
    for step in range(8):
        x = (torch.randn(6, 3) * scale + shift).to(F64).requires_grad_()
        other = x.detach().clone().requires_grad_()
        share = min(step / 4, 1) if smooth else float(step >= 4)
        out, expected = layer(x), reference(other, share)
        assert_close(out, expected)
        weights = torch.randn(6, 3, dtype=F64)
        assert_close(
            torch.autograd.grad((out * weights).sum(), x)[0], torch.autograd.grad((expected * weights).sum(), other)[0]
        )
    assert_close(layer.running_mean, torch.tensor(reference.mean, dtype=F64))
    assert_close(layer.running_var, torch.tensor(reference.var, dtype=F64))
    assert layer.num_batches_tracked == 8


def test_parameters_and_statistics_are_reset():
    layer = BatchRenorm1d(3)
    fresh = {key: value.clone() for key, value in layer.state_dict().items()}
    layer(torch.randn(8, 3))
    torch.nn.init.normal_(layer.weight)
    layer.reset_parameters()
    assert all(torch.equal(value, fresh[key]) for key, value in layer.state_dict().items())


def test_one_vector_is_normalized_in_evaluation_mode():
    layer = BatchRenorm1d(3).eval()
    x = torch.randn(2, 3)
    assert_close(layer(x[0]), layer(x)[0])


def test_warmup_is_batch_normalization_and_evaluation_uses_running_statistics():
    torch.manual_seed(0)
    layer, other = BatchRenorm1d(3), nn.BatchNorm1d(3)
    x = torch.randn(64, 3) * 2 + 1
    assert_close(layer(x), other(x))
    layer.eval()
    before = layer.running_mean.clone()
    assert_close(layer(x[:1]), (x[:1] - before) / (layer.running_var + 1e-5).sqrt())
    assert torch.equal(layer.running_mean, before)


def test_after_long_training_both_modes_agree():
    torch.manual_seed(0)
    layer = BatchRenorm1d(2, momentum=0.05, warmup_steps=0)
    for _ in range(300):
        layer(torch.randn(256, 2) * 3 - 1)
    x = torch.randn(256, 2) * 3 - 1
    assert_close(layer(x), layer.eval()(x), atol=1e-2, rtol=1e-2)


def test_batch_dimensions_count_as_one_and_one_element_is_finite():
    torch.manual_seed(0)
    one, two = BatchRenorm1d(3, warmup_steps=0), BatchRenorm1d(3, warmup_steps=0)
    x = torch.randn(2, 5, 3)
    assert_close(one(x).flatten(0, 1), two(x.flatten(0, 1)))
    assert one(torch.randn(1, 3)).isfinite().all()


def test_it_is_a_norm_of_mlp_and_compiles_whole():
    net = MLP(4, 2, [8], norm_class=BatchRenorm1d, norm_kwargs={"warmup_steps": 2})
    twin = MLP(4, 2, [8], norm_class=BatchRenorm1d, norm_kwargs={"warmup_steps": 2})
    twin.load_state_dict(net.state_dict())
    compiled = torch.compile(twin, fullgraph=True, backend="eager")
    for _ in range(4):
        x = torch.randn(6, 4)
        assert_close(compiled(x), net(x))
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: BatchRenorm1d(0), ArgumentError, "num_features"),
        (lambda: BatchRenorm1d(3, momentum=0), ArgumentError, "0 < momentum <= 1"),
        (lambda: BatchRenorm1d(3, max_r=0.5), ArgumentError, "max_r >= 1"),
        (lambda: BatchRenorm1d(3)(torch.zeros(5, 4)), ShapeError, r"\[\*B, 3\], got \(5, 4\)"),
        (lambda: BatchRenorm1d(3)(torch.zeros(3)), ShapeError, r"got \(3,\)"),
    ],
)
def test_what_does_not_fit_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
