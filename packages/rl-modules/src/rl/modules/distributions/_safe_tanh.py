"""Hyperbolic tangent and its inverse that stay away from the bounds."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function

__all__ = ["safeatanh", "safetanh"]


def safetanh(input: Tensor, eps: float = 1e-6) -> Tensor:  # noqa: A002  the name that users of TorchRL know
    """Compute ``tanh(input)``, at most ``1 - eps`` in size, with the gradient ``1 - y^2`` of that value `y`.

    Beyond ``atanh(1 - eps)`` the gradient is that of the bound, small but not zero.

    Args:
        input: Tensor of any shape.
        eps: Distance from the bounds; above the resolution of the dtype, 1e-3 in float16 and 1e-2 in bfloat16.

    Example:
        >>> import torch
        >>> x = torch.tensor([0.0, 100.0], requires_grad=True)
        >>> y = safetanh(x, 0.25)
        >>> y.sum().backward()
        >>> y.tolist(), x.grad.tolist()
        ([0.0, 0.75], [1.0, 0.4375])
    """
    return _SafeTanh.apply(input, eps)  # pyright: ignore[reportReturnType]  # a tensor


def safeatanh(input: Tensor, eps: float = 1e-6) -> Tensor:  # noqa: A002  the name that users of TorchRL know
    """Compute ``atanh(y)`` of `input` clamped to ``y`` in ``[eps - 1, 1 - eps]``, with the gradient ``1 / (1 - y^2)``.

    The gradient also passes where `input` is clamped.

    Args:
        input: Tensor of any shape.
        eps: Distance from the bounds, as of `safetanh`.

    Example:
        >>> import torch
        >>> y = torch.tensor([0.0, 1.0], requires_grad=True)
        >>> x = safeatanh(y, 0.5)
        >>> x.sum().backward()
        >>> x.detach(), y.grad
        (tensor([0.0000, 0.5493]), tensor([1.0000, 1.3333]))
    """
    return _SafeAtanh.apply(input, eps)  # pyright: ignore[reportReturnType]  # a tensor


class _SafeTanh(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, eps: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's second form
        return x.tanh().clamp(eps - 1, 1 - eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004  torch's signature
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (y,) = ctx.saved_tensors
        return grad * (1 - y * y), None


class _SafeAtanh(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, eps: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's second form
        return y.clamp(eps - 1, 1 - eps).atanh()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004  torch's signature
        y, eps = inputs
        ctx.save_for_backward(y)
        ctx.eps = eps

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (y,) = ctx.saved_tensors
        y = y.clamp(ctx.eps - 1, 1 - ctx.eps)
        return grad / (1 - y * y), None
