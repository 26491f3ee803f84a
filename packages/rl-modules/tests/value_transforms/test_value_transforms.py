import pytest
import torch
from torch.testing import assert_close

from rl.core.errors import ArgumentError
from rl.modules import (
    ComposeValueTransform,
    IdentityValueTransform,
    SignedHyperbolicValueTransform,
    SymLogValueTransform,
    signed_hyperbolic,
    signed_parabolic,
    symexp,
    symlog,
)

F64 = torch.float64
X = torch.tensor([-1e6, -50.0, -1.0, -1e-3, 0.0, 1e-3, 0.7, 30.0, 1e6], dtype=F64)


def test_values_are_those_of_the_papers():
    assert_close(symlog(X), X.sign() * (1 + X.abs()).log())
    y = X.clamp(-50, 50)
    assert_close(symexp(y), y.sign() * (y.abs().exp() - 1))
    for eps in (1e-3, 0.1):
        assert_close(signed_hyperbolic(X, eps), X.sign() * ((X.abs() + 1).sqrt() - 1) + eps * X)
        root = ((1 + 4 * eps * (X.abs() + 1 + eps)).sqrt() - 1) / (2 * eps)
        assert_close(signed_parabolic(X, eps), X.sign() * (root.square() - 1))


TRANSFORMS = [
    pytest.param(IdentityValueTransform(), id="identity"),
    pytest.param(SymLogValueTransform(), id="symlog"),
    pytest.param(SignedHyperbolicValueTransform(), id="hyperbolic"),
    pytest.param(SignedHyperbolicValueTransform(0.0), id="hyperbolic-without-slope"),
    pytest.param(ComposeValueTransform(SignedHyperbolicValueTransform(0.1), SymLogValueTransform()), id="both"),
    pytest.param(ComposeValueTransform(), id="none"),
]


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=str)
def test_the_inverse_is_one(transform, dtype):
    x = X.to(dtype)
    assert_close(transform.inverse(transform(x)), x, atol=0, rtol=1e-10 if dtype is F64 else 2e-5)
    assert (transform(x).diff() > 0).all()


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_derivatives_agree_with_differences_also_at_zero(transform):
    x = X[1:-1].clone().requires_grad_()
    h = 1e-6
    for function in (transform, transform.inverse):
        y = x if function is transform else transform(x).detach().requires_grad_()
        (grad,) = torch.autograd.grad(function(y).sum(), y)
        z = y.detach()
        assert_close(grad, (function(z + h) - function(z - h)) / (2 * h), rtol=1e-5, atol=1e-5)


def test_order_of_a_composition():
    both = ComposeValueTransform(SignedHyperbolicValueTransform(0.1), SymLogValueTransform())
    assert_close(both(X), symlog(signed_hyperbolic(X, 0.1)))
    with pytest.raises(ArgumentError, match="eps must be at least 0, got -1"):
        SignedHyperbolicValueTransform(-1)
