"""Invertible functions of real numbers that compress large values."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["signed_hyperbolic", "signed_parabolic", "symexp", "symlog"]


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
        x: any real numbers.
        eps: slope for large `x`, at least 0.

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
        x: any real numbers.
        eps: that of `signed_hyperbolic`.

    Example:
        >>> import torch
        >>> signed_parabolic(torch.tensor([-1.0, 0.0, 2.0]), eps=0.0)
        tensor([-3.,  0.,  8.])
    """
    shifted = x.abs() + 1 + eps
    root = 2 * shifted / (1 + (1 + 4 * eps * shifted).sqrt())  # sqrt(|y| + 1) of the result y
    return x * (root + 1) / (1 + eps * (root + 1))
