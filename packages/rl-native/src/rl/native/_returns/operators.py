"""The return kernels as operators of PyTorch, ``torch.ops.rl_native``: for compilers, tracers and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.library import Library, register_autograd, register_fake

from rl.native._returns.kernels import (
    GAE,
    PLAIN,
    TD_LAMBDA,
    VTRACE,
    Slots,
    check_inputs,
    compute,
    run,
    run_forward,
)

__all__ = ["library", "transformed"]

library = Library("rl_native", "FRAGMENT")
"""Keeps the definitions alive."""

_COEFFICIENTS = "Tensor? gammas, Tensor? lmbdas, float gamma, float lmbda, int time_dim"
_FLAGS = "Tensor done, Tensor terminated"
library.define("linear_recurrence(Tensor d, Tensor c, int time_dim, bool forward) -> Tensor")
library.define(f"gae(Tensor value, Tensor next_value, Tensor reward, {_FLAGS}, {_COEFFICIENTS}) -> (Tensor, Tensor)")
library.define(f"td_lambda(Tensor? next_value, Tensor reward, {_FLAGS}, {_COEFFICIENTS}) -> Tensor")
library.define(
    f"vtrace(Tensor ratio, Tensor value, Tensor next_value, Tensor reward, {_FLAGS}, {_COEFFICIENTS}, float rho_bar,"
    " float c_bar) -> (Tensor, Tensor)"
)


def _linear_recurrence(d: Tensor, c: Tensor, time_dim: int, forward: bool) -> Tensor:  # noqa: FBT001 - of the schema
    inputs: Slots = (d, None, None, None, c, None, None, None)
    dim = check_inputs(inputs, (4,), time_dim)
    out = torch.empty_like(d)
    if forward:
        run_forward(d, c, out, dim)
    else:
        run(PLAIN, inputs, (out, None), dim)
    return out


def _gae(
    value: Tensor,
    next_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor,
    gammas: Tensor | None,
    lmbdas: Tensor | None,
    gamma: float,
    lmbda: float,
    time_dim: int,
) -> Any:
    inputs: Slots = (reward, value, next_value, None, gammas, lmbdas, done, terminated)
    return compute(GAE, inputs, check_inputs(inputs, (1, 2), time_dim), gamma, lmbda)


def _td_lambda(
    next_value: Tensor | None,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor,
    gammas: Tensor | None,
    lmbdas: Tensor | None,
    gamma: float,
    lmbda: float,
    time_dim: int,
) -> Any:
    inputs = reward, None, next_value, None, gammas, lmbdas, done, terminated
    return compute(TD_LAMBDA, inputs, check_inputs(inputs, (), time_dim), gamma, lmbda)


def _vtrace(  # noqa: PLR0913, PLR0917 - of the schema
    ratio: Tensor,
    value: Tensor,
    next_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor,
    gammas: Tensor | None,
    lmbdas: Tensor | None,
    gamma: float,
    lmbda: float,
    time_dim: int,
    rho_bar: float,
    c_bar: float,
) -> Any:
    inputs = reward, value, next_value, ratio, gammas, lmbdas, done, terminated
    return compute(VTRACE, inputs, check_inputs(inputs, (1, 2, 3), time_dim), gamma, lmbda, rho_bar, c_bar)


def _fake_linear_recurrence(d: Tensor, *_: object) -> Tensor:
    return torch.empty_like(d)


def _fake_gae(_value: Tensor, _next_value: Tensor, reward: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(reward), torch.empty_like(reward)


def _fake_td_lambda(_next_value: Tensor | None, reward: Tensor, *_: object) -> Tensor:
    return torch.empty_like(reward)


def _fake_vtrace(
    _ratio: Tensor, _value: Tensor, _next_value: Tensor, reward: Tensor, *_: object
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(reward), torch.empty_like(reward)


for _name, _function, _fake in (
    ("linear_recurrence", _linear_recurrence, _fake_linear_recurrence),
    ("gae", _gae, _fake_gae),
    ("td_lambda", _td_lambda, _fake_td_lambda),
    ("vtrace", _vtrace, _fake_vtrace),
):
    library.impl(_name, _function, "CPU")
    register_fake(f"rl_native::{_name}", _fake, lib=library)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, int, bool], output: Tensor) -> None:
    _, c, ctx.time_dim, ctx.forward_in_time = inputs
    ctx.save_for_backward(c, output)


def _following(x: Tensor, dim: int) -> Tensor:
    """The following step; zero at the end."""
    return torch.cat((x.narrow(dim, 1, x.shape[dim] - 1), torch.zeros_like(x.narrow(dim, 0, 1))), dim)


_Gradients = tuple[Tensor | None, Tensor | None, None, None]


def _gradients(run: Callable[[Tensor, Tensor, int, bool], Tensor], ctx: Any, grad: Tensor) -> _Gradients:
    """Gradients: the recurrence in the other direction of time, as often differentiable as `run`."""
    c, x = ctx.saved_tensors
    dim: int = ctx.time_dim
    if not x.numel():
        return grad, torch.zeros_like(c), None, None
    g = run(grad, c, dim, not ctx.forward_in_time)
    if not ctx.needs_input_grad[1]:
        return g, None, None, None
    return g, x * _following(g, dim) if ctx.forward_in_time else g * _following(x, dim), None, None


def _backward(ctx: Any, grad: Tensor) -> _Gradients:
    return _gradients(torch.ops.rl_native.linear_recurrence, ctx, grad)


register_autograd("rl_native::linear_recurrence", _backward, setup_context=_setup, lib=library)


class _Transformed(Function):
    """The operator for the transforms of `torch.func`, which do not use its registered gradient."""

    @staticmethod
    def forward(d: Tensor, c: Tensor, time_dim: int, forward: bool) -> Tensor:  # noqa: FBT001  # pyright: ignore[reportIncompatibleMethodOverride] - torch declares *args
        return torch.ops.rl_native.linear_recurrence(d, c, time_dim, forward)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, bool], output: Tensor) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - torch declares Any
        _setup(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> _Gradients:  # pyright: ignore[reportIncompatibleMethodOverride] - torch declares *args
        return _gradients(transformed, ctx, grad)

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *arguments: Any) -> tuple[Tensor, int]:  # pyright: ignore[reportIncompatibleMethodOverride] - torch declares *args
        d, c, time_dim, forward = arguments
        d, c = (
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip((d, c), in_dims, strict=False)
        )
        return transformed(d, c, time_dim + 1, forward), 0


def transformed(d: Tensor, c: Tensor, time_dim: int, forward: bool) -> Tensor:  # noqa: FBT001 - of the schema
    """``rl_native::linear_recurrence`` where a transform of `torch.func` is active; `time_dim` from the front."""
    return _Transformed.apply(d, c, time_dim, forward)  # pyright: ignore[reportReturnType] - apply is not typed
