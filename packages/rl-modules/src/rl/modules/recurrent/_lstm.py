"""An LSTM layer over a sequence, as a registered operator; see `rl.modules.recurrent.ops`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl.modules.recurrent._kernels import find_resets, kernels_for, states_before
from rl.modules.recurrent._layout import products
from rl.modules.recurrent.ops import column_sums, define, dense, flat, nothing

# ruff: noqa: PLR0913, PLR0917, FBT001  signatures are those of the operators


_GIVEN = (
    "Tensor x, Tensor weight_ih, Tensor weight_hh, Tensor? bias, Tensor h0, Tensor c0, Tensor restart,"
    " Tensor? reset_h, Tensor? reset_c"
)


def _from_inputs(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = flat(x)
    gates = rows @ weight.t() if bias is None else torch.addmm(bias, rows, weight.t())
    return gates.view(*x.shape[:-1], weight.shape[0])


def _run(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None,
    h0: Tensor,
    c0: Tensor,
    restart: Tensor,
    reset_h: Tensor | None,
    reset_c: Tensor | None,
    keep: bool,
    kernels: str,
    precision: str | None,
) -> tuple[Tensor, Tensor, Tensor]:
    h0, c0 = h0.contiguous(), c0.contiguous()
    resets = find_resets(restart, reset_h, reset_c, h0)
    h, c = (x.new_empty(*x.shape[:-1], h0.shape[-1]) for _ in range(2))
    with products(x.device, precision):
        gates = _from_inputs(x, weight_ih, bias)
        loops = kernels_for(kernels, x.dtype, x.device)
        loops.lstm_forward(gates, weight_hh.contiguous(), h0, c0, resets, h, c)
    return h, c, gates if keep else nothing(x)


def _fake(x: Tensor, weight_ih: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    h0, keep = rest[2], rest[7]
    h, c = (x.new_empty(*x.shape[:-1], h0.shape[-1]) for _ in range(2))
    return h, c, x.new_empty(*x.shape[:-1], weight_ih.shape[0]) if keep else nothing(x)


def _again(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor | None, before: Tensor) -> Tensor:
    """All gates at once, from the states before each step."""
    gates, width = _from_inputs(x, weight_ih, bias), before.shape[-1]
    flat(gates).addmm_(flat(before), weight_hh.t())
    i_f, g, o = gates.split((2 * width, width, width), -1)
    i_f.sigmoid_()
    g.tanh_()
    o.sigmoid_()
    return gates


def _run_backward(
    grad_h: Tensor | None,
    grad_c: Tensor | None,
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None,
    h0: Tensor,
    c0: Tensor,
    restart: Tensor,
    reset_h: Tensor | None,
    reset_c: Tensor | None,
    h: Tensor,
    c: Tensor,
    gates: Tensor,
    wanted: list[bool],
    kernels: str,
    precision: str | None,
) -> tuple[Tensor, ...]:
    h0, c0, weight_hh = h0.contiguous(), c0.contiguous(), weight_hh.contiguous()
    resets = find_resets(restart, reset_h, reset_c, h0)
    before = states_before(h0, h, resets, resets and resets.h)
    grad_h = torch.zeros_like(h) if grad_h is None else grad_h.contiguous()
    grad_c = None if grad_c is None else grad_c.contiguous()
    grad_h0, grad_c0 = torch.empty_like(h0), torch.empty_like(c0)
    of_resets = (None, None)
    if resets is not None and (wanted[6] or wanted[7]):
        of_resets = torch.empty_like(resets.h), torch.empty_like(resets.h)
    with products(x.device, precision):
        if not gates.numel():
            gates = _again(x, weight_ih, weight_hh, bias, before)
        grad = torch.empty_like(gates)
        loops = kernels_for(kernels, x.dtype, x.device)
        loops.lstm_backward(gates, weight_hh, c0, c, resets, grad_h, grad_c, grad, grad_h0, grad_c0, *of_resets)
        rows, inputs = flat(grad), x.shape[-1]
        # One product for both weights is faster than two.
        weights = rows.t() @ torch.cat((flat(x), flat(before)), 1) if wanted[1] or wanted[2] else rows[:0]
        return (
            (rows @ weight_ih).view_as(x) if wanted[0] else nothing(x),
            weights[:, :inputs].contiguous() if wanted[1] else nothing(x),
            weights[:, inputs:].contiguous() if wanted[2] else nothing(x),
            column_sums(rows) if wanted[3] else nothing(x),
            grad_h0,
            grad_c0,
            dense(of_resets[0], resets, h) if wanted[6] else nothing(x),
            dense(of_resets[1], resets, h) if wanted[7] else nothing(x),
        )


def _fake_backward(grad_h: Any, grad_c: Any, *given: Any) -> tuple[Tensor, ...]:
    del grad_h, grad_c  # shapes are those of the arguments
    x, weight_ih, weight_hh, _, h0, c0 = given[:6]
    wanted = [*given[12][:4], True, True, *given[12][6:]]
    shapes = (x.shape, weight_ih.shape, weight_hh.shape, weight_ih.shape[:1], h0.shape, c0.shape)
    states = (*x.shape[:-1], h0.shape[-1])
    return tuple(
        x.new_empty(shape if want else 0) for shape, want in zip((*shapes, states, states), wanted, strict=True)
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    *tensors, _, kernels, precision = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.how = kernels, precision


def _gradient(ctx: Any, grad_h: Tensor | None, grad_c: Tensor | None, _: Any) -> tuple[Any, ...]:
    needs = ctx.needs_input_grad
    wanted = [*needs[:6], *needs[7:9]]
    grads = _backward(grad_h, grad_c, *ctx.saved_tensors, wanted, *ctx.how)
    given = [grad if want else None for grad, want in zip(grads, wanted, strict=True)]
    return (*given[:6], None, *given[6:], None, None, None)


_backward = define(
    f"lstm_layer_backward(Tensor? grad_h, Tensor? grad_c, {_GIVEN}, Tensor h, Tensor c, Tensor gates, bool[] wanted,"
    " str kernels, str? precision) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _run_backward,
    _fake_backward,
)
lstm_layer = define(
    f"lstm_layer({_GIVEN}, bool keep, str kernels, str? precision) -> (Tensor, Tensor, Tensor)",
    _run,
    _fake,
    _gradient,
    _setup,
)
"""States ``[T, B, H]`` after each step, and the gates if they are kept."""
