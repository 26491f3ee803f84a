"""A GRU layer over a sequence, as a registered operator; see `rl.modules.recurrent.ops`.

Its gates are in four slots n, r, z, m, where m is the recurrent part of n: so the columns n, r, z belong to the inputs
and r, z, m to the state, and each product reads or writes columns that lie side by side.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl.modules.recurrent._kernels import find_resets, kernels_for, states_before
from rl.modules.recurrent._layout import products
from rl.modules.recurrent.ops import column_sums, define, dense, flat, nothing

# ruff: noqa: PLR0913, PLR0917, FBT001  signatures are those of the operators


_GIVEN = "Tensor x, Tensor weight_ih, Tensor weight_hh, Tensor? bias, Tensor h0, Tensor restart, Tensor? reset_h"


def _from_inputs(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Slots n, r, z from inputs and biases, and m, the bias of the recurrent part of n."""
    rows, three = flat(x), weight.shape[0]
    gates = x.new_empty(*x.shape[:-1], 4 * (three // 3))
    of_input, of_state = flat(gates)[:, :three], flat(gates)[:, three:]
    if bias is None:
        torch.mm(rows, weight.t(), out=of_input)
        of_state.zero_()
    else:
        torch.addmm(bias[:three], rows, weight.t(), out=of_input)
        of_state.copy_(bias[three:].expand_as(of_state))
    return gates


def _run(
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None,
    h0: Tensor,
    restart: Tensor,
    reset_h: Tensor | None,
    keep: bool,
    kernels: str,
    precision: str | None,
) -> tuple[Tensor, Tensor]:
    h0 = h0.contiguous()
    resets = find_resets(restart, reset_h, None, h0)
    h = x.new_empty(*x.shape[:-1], h0.shape[-1])
    with products(x.device, precision):
        gates = _from_inputs(x, weight_ih, bias)
        kernels_for(kernels, x.dtype, x.device).gru_forward(gates, weight_hh.contiguous(), h0, resets, h)
    return h, gates if keep else nothing(x)


def _fake(x: Tensor, weight_ih: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    del weight_ih
    width, keep = rest[2].shape[-1], rest[5]
    return x.new_empty(*x.shape[:-1], width), x.new_empty(*x.shape[:-1], 4 * width) if keep else nothing(x)


def _again(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor | None, before: Tensor) -> Tensor:
    """All gates at once, from the states before each step."""
    gates, width = _from_inputs(x, weight_ih, bias), before.shape[-1]
    flat(gates)[:, width:].addmm_(flat(before), weight_hh.t())
    n, r_z, m = gates.split((width, 2 * width, width), -1)
    r_z.sigmoid_()
    n.addcmul_(r_z[..., :width], m).tanh_()
    return gates


def _run_backward(
    grad_h: Tensor,
    x: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None,
    h0: Tensor,
    restart: Tensor,
    reset_h: Tensor | None,
    h: Tensor,
    gates: Tensor,
    wanted: list[bool],
    kernels: str,
    precision: str | None,
) -> tuple[Tensor, ...]:
    h0, weight_hh, width = h0.contiguous(), weight_hh.contiguous(), h0.shape[-1]
    resets = find_resets(restart, reset_h, None, h0)
    before = states_before(h0, h, resets, resets and resets.h)
    grad_h0 = torch.empty_like(h0)
    of_resets = torch.empty_like(resets.h) if resets is not None and wanted[5] else None
    with products(x.device, precision):
        if not gates.numel():
            gates = _again(x, weight_ih, weight_hh, bias, before)
        grad = torch.empty_like(gates)
        loops = kernels_for(kernels, x.dtype, x.device)
        loops.gru_backward(gates, weight_hh, h0, h, resets, grad_h.contiguous(), grad, grad_h0, of_resets)
        rows = flat(grad)
        of_input, of_state = rows[:, : 3 * width], rows[:, width:]
        return (
            (of_input @ weight_ih).view_as(x) if wanted[0] else nothing(x),
            of_input.t() @ flat(x) if wanted[1] else nothing(x),
            of_state.t() @ flat(before) if wanted[2] else nothing(x),
            column_sums(rows) if wanted[3] else nothing(x),
            grad_h0,
            dense(of_resets, resets, h) if wanted[5] else nothing(x),
        )


def _fake_backward(grad_h: Tensor, *given: Any) -> tuple[Tensor, ...]:
    x, weight_ih, weight_hh, _, h0 = given[:5]
    wanted = [*given[9][:4], True, given[9][5]]
    shapes = (x.shape, weight_ih.shape, weight_hh.shape, (4 * h0.shape[-1],), h0.shape, grad_h.shape)
    return tuple(x.new_empty(shape if want else 0) for shape, want in zip(shapes, wanted, strict=True))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    *tensors, _, kernels, precision = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.how = kernels, precision


def _gradient(ctx: Any, grad_h: Tensor | None, _: Any) -> tuple[Any, ...]:
    if grad_h is None:
        return (None,) * 10
    needs = ctx.needs_input_grad
    wanted = [*needs[:5], needs[6]]
    grads = _backward(grad_h, *ctx.saved_tensors, wanted, *ctx.how)
    given = [grad if want else None for grad, want in zip(grads, wanted, strict=True)]
    return (*given[:5], None, given[5], None, None, None)


_backward = define(
    f"gru_layer_backward(Tensor grad_h, {_GIVEN}, Tensor h, Tensor gates, bool[] wanted, str kernels,"
    " str? precision) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _run_backward,
    _fake_backward,
)
gru_layer = define(
    f"gru_layer({_GIVEN}, bool keep, str kernels, str? precision) -> (Tensor, Tensor)",
    _run,
    _fake,
    _gradient,
    _setup,
)
"""States ``[T, B, H]`` after each step, and the gates if they are kept."""
