"""Invertible transforms of value targets."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl.core.arguments import as_number

__all__ = [
    "ComposeValueTransform",
    "IdentityValueTransform",
    "SignedHyperbolicValueTransform",
    "SymLogValueTransform",
    "ValueTransform",
    "signed_hyperbolic",
    "signed_parabolic",
    "symexp",
    "symlog",
]


def symlog(x: Tensor) -> Tensor:
    """``sign(x) log(1 + |x|)``, the inverse of `symexp`; its derivative at zero is 1.

    Hafner et al., "Mastering Diverse Domains through World Models", 2023, eq. 9.

    Example:
        >>> import torch
        >>> symlog(torch.tensor([-1.718281828, 0.0]))
        tensor([-1.,  0.])
    """
    # Of both parts, one has a derivative at zero; that of a clamp at its bound depends on the version of torch.
    return torch.where(x < 0, 0, x).log1p() - (-x).relu().log1p()


def symexp(x: Tensor) -> Tensor:
    """``sign(x) (exp(|x|) - 1)``, the inverse of `symlog`; its derivative at zero is 1.

    Hafner et al., "Mastering Diverse Domains through World Models", 2023, eq. 9.

    Example:
        >>> import torch
        >>> symexp(torch.tensor([-1.0, 0.0]))
        tensor([-1.7183,  0.0000])
    """
    return torch.where(x < 0, 0, x).expm1() - (-x).relu().expm1()


def signed_hyperbolic(x: Tensor, eps: float = 1e-3) -> Tensor:
    """``sign(x) (sqrt(|x| + 1) - 1) + eps x``, the inverse of `signed_parabolic`.

    Pohlen et al., "Observe and Look Further: Achieving Consistent Performance on Atari", 2018, section 3.2. Without
    cancellation for small `x`.

    Args:
        x: Real numbers.
        eps: Slope for large `x`, at least 0.

    Example:
        >>> import torch
        >>> signed_hyperbolic(torch.tensor([-3.0, 0.0, 8.0]), eps=0.0)
        tensor([-1.,  0.,  2.])
    """
    return x / ((x.abs() + 1).sqrt() + 1) + eps * x


def signed_parabolic(x: Tensor, eps: float = 1e-3) -> Tensor:
    """Inverse of `signed_hyperbolic`: ``sign(x) (((sqrt(1 + 4 eps (|x| + 1 + eps)) - 1) / (2 eps))^2 - 1)``.

    Pohlen et al., "Observe and Look Further: Achieving Consistent Performance on Atari", 2018, proposition A.2. Without
    cancellation for small `x` or `eps`.

    Args:
        x: Real numbers.
        eps: Slope of `signed_hyperbolic` for large `x`.

    Example:
        >>> import torch
        >>> signed_parabolic(torch.tensor([-1.0, 0.0, 2.0]), eps=0.0)
        tensor([-3.,  0.,  8.])
    """
    shifted = x.abs() + 1 + eps
    root = 2 * shifted / (1 + (1 + 4 * eps * shifted).sqrt())  # sqrt(|y| + 1) of the result y
    return x * (root + 1) / (1 + eps * (root + 1))


class ValueTransform(nn.Module):
    """Base of invertible transforms: a critic predicts ``transform(target)``, whose value is ``transform.inverse``."""

    def forward(self, value: Tensor) -> Tensor:
        """From units of reward to what a critic predicts, of the same shape."""
        raise NotImplementedError

    def inverse(self, value: Tensor) -> Tensor:
        """From what a critic predicts to units of reward, of the same shape."""
        raise NotImplementedError


class IdentityValueTransform(ValueTransform):
    """Values as they are.

    Example:
        >>> import torch
        >>> IdentityValueTransform()(torch.ones(1))
        tensor([1.])
    """

    def forward(self, value: Tensor) -> Tensor:
        """Return the values unchanged."""
        return value

    def inverse(self, value: Tensor) -> Tensor:
        """Return the values unchanged."""
        return value


class SymLogValueTransform(ValueTransform):
    """Values on a symmetric logarithmic scale, see `symlog`.

    Example:
        >>> import torch
        >>> transform = SymLogValueTransform()
        >>> transform.inverse(transform(torch.tensor([-3.0, 0.5])))
        tensor([-3.0000,  0.5000])
    """

    def forward(self, value: Tensor) -> Tensor:
        """`symlog` of the values."""
        return symlog(value)

    def inverse(self, value: Tensor) -> Tensor:
        """`symexp` of the values."""
        return symexp(value)


class SignedHyperbolicValueTransform(ValueTransform):
    """Values on a square root scale, see `signed_hyperbolic`.

    Args:
        eps: Slope for large values, at least 0.

    Raises:
        ArgumentError: if `eps` is negative.

    Example:
        >>> import torch
        >>> transform = SignedHyperbolicValueTransform()
        >>> transform.inverse(transform(torch.tensor([-100.0, 0.5])))
        tensor([-100.0000,    0.5000])
    """

    def __init__(self, eps: float = 1e-3) -> None:
        super().__init__()
        self.eps = as_number(eps, "SignedHyperbolicValueTransform", "eps", least=0)

    def forward(self, value: Tensor) -> Tensor:
        """`signed_hyperbolic` of the values."""
        return signed_hyperbolic(value, self.eps)

    def inverse(self, value: Tensor) -> Tensor:
        """`signed_parabolic` of the values."""
        return signed_parabolic(value, self.eps)

    def extra_repr(self) -> str:
        return f"eps={self.eps}"


class ComposeValueTransform(ValueTransform):
    """Several transforms, the first one first.

    Args:
        transforms: Transforms in the order in which they are applied to values in units of reward.

    Example:
        >>> import torch
        >>> both = ComposeValueTransform(SignedHyperbolicValueTransform(), SymLogValueTransform())
        >>> both.inverse(both(torch.tensor([50.0])))
        tensor([50.0000])
    """

    def __init__(self, *transforms: ValueTransform) -> None:
        super().__init__()
        self.transforms = nn.ModuleList(transforms)

    def forward(self, value: Tensor) -> Tensor:
        """Apply the transforms one after the other."""
        for transform in self.transforms:
            value = transform(value)
        return value

    def inverse(self, value: Tensor) -> Tensor:
        """Their inverses, the last one first."""
        for transform in reversed(self.transforms):
            assert isinstance(transform, ValueTransform)
            value = transform.inverse(value)
        return value
