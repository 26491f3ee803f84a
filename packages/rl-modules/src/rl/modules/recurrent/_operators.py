"""LSTM and GRU layers over a sequence, as operators ``torch.ops.rl_modules.lstm_layer`` and ``gru_layer``.

An operator is one layer over a sequence ``[T, B, ...]``, opaque to the compiler, with a gradient written by hand:

1. the projection of the inputs of all steps, one matrix product;
2. the loop over time, in `_kernels.TorchKernels` or the kernels of a plugin, which builds no autograd graph;
3. backward: the loop in reverse order, then the gradient of each weight as one product over all steps.

The gates of the forward pass are stored for the backward pass, or recomputed from the states in one product. The
operators are differentiable once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from rl.modules.recurrent._kernels import Resets, find_resets, kernels_for, states_before
from rl.modules.recurrent._layout import products

# ruff: noqa: PLR0913, PLR0917, FBT001  signatures are those of the operators

_library = torch.library.Library("rl_modules", "FRAGMENT")


def define(
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    gradient: Callable[..., Any] | None = None,
    setup: Callable[..., Any] | None = None,
) -> Any:
    """Register an operator for all devices, with its fake kernel and its gradient, and return its overload.

    Args:
        schema: Signature, ``"name(arguments) -> results"``.
        run: Implementation.
        fake: Function that returns empty results of the right shapes.
        gradient: Backward function; without one, a derivative raises.
        setup: Function that saves the tensors of the backward pass.
    """
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"rl_modules::{name}", fake, lib=_library)
    torch.library.register_autograd(f"rl_modules::{name}", gradient or _once, setup_context=setup, lib=_library)
    return getattr(torch.ops.rl_modules, name).default


def flat(sequence: Tensor) -> Tensor:
    """Return a sequence ``[T, B, n]`` as ``[T * B, n]``."""
    return sequence.reshape(-1, sequence.shape[-1])


def column_sums(matrix: Tensor) -> Tensor:
    """Compute ``matrix.sum(0)`` as a product, which takes half of the time."""
    return matrix.new_ones(len(matrix)) @ matrix


def dense(rows: Tensor | None, resets: Resets | None, like: Tensor) -> Tensor:
    """Return the rows ``[n, H]`` of the resets as ``[T, B, H]``, zero at the other steps."""
    steps = torch.zeros_like(like)
    if rows is not None and resets is not None:
        steps.flatten(0, 1).index_copy_(0, resets.at, rows)
    return steps


def nothing(like: Tensor) -> Tensor:
    """Return an empty tensor of the dtype and device of another: operators cannot return None."""
    return like.new_empty(0)


def _once(*_: Any) -> NoReturn:
    raise RuntimeError(
        "the recurrent back end 'scan' differentiates once: for gradients of gradients run the recurrence step by step"
    )


# ------------------------------------------------------------------ LSTM

_LSTM_ARGUMENTS = (
    "Tensor x, Tensor weight_ih, Tensor weight_hh, Tensor? bias, Tensor h0, Tensor c0, Tensor restart,"
    " Tensor? reset_h, Tensor? reset_c"
)


# i, f, o = sigmoid, g = tanh of (W_ih x + W_hh h + b);  c' = f * c + i * g;  h' = o * tanh(c')
# Gates lie side by side in the order i, f, g, o, as in torch.nn.LSTM. `bias` is the sum of both biases of torch.


def _lstm_projection(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute ``W_ih x + b`` of all steps, ``[T, B, 4H]``, to which the loop adds ``W_hh h``."""
    rows = flat(x)
    gates = rows @ weight.t() if bias is None else torch.addmm(bias, rows, weight.t())
    return gates.view(*x.shape[:-1], weight.shape[0])


def _lstm_run(
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
        gates = _lstm_projection(x, weight_ih, bias)
        loops = kernels_for(kernels, x.dtype, x.device)
        loops.lstm_forward(gates, weight_hh.contiguous(), h0, c0, resets, h, c)
    return h, c, gates if keep else nothing(x)


def _lstm_fake(x: Tensor, weight_ih: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    h0, keep = rest[2], rest[7]
    h, c = (x.new_empty(*x.shape[:-1], h0.shape[-1]) for _ in range(2))
    return h, c, x.new_empty(*x.shape[:-1], weight_ih.shape[0]) if keep else nothing(x)


def _lstm_gates(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor | None, before: Tensor) -> Tensor:
    """Compute the gates of all steps ``[T, B, 4H]`` in one product, from the states before each step."""
    gates, width = _lstm_projection(x, weight_ih, bias), before.shape[-1]
    flat(gates).addmm_(flat(before), weight_hh.t())
    i_f, g, o = gates.split((2 * width, width, width), -1)
    i_f.sigmoid_()
    g.tanh_()
    o.sigmoid_()
    return gates


def _lstm_run_backward(
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
    before = states_before(h0, h, resets, resets and resets.h)  # [T, B, H], the input of W_hh
    grad_h = torch.zeros_like(h) if grad_h is None else grad_h.contiguous()
    grad_c = None if grad_c is None else grad_c.contiguous()
    grad_h0, grad_c0 = torch.empty_like(h0), torch.empty_like(c0)
    grad_reset = (None, None)
    if resets is not None and (wanted[6] or wanted[7]):
        grad_reset = torch.empty_like(resets.h), torch.empty_like(resets.h)
    with products(x.device, precision):
        if not gates.numel():  # recompute="full"
            gates = _lstm_gates(x, weight_ih, weight_hh, bias, before)
        grad = torch.empty_like(gates)  # of the gates before the activations
        loops = kernels_for(kernels, x.dtype, x.device)
        loops.lstm_backward(gates, weight_hh, c0, c, resets, grad_h, grad_c, grad, grad_h0, grad_c0, *grad_reset)
        rows, inputs = flat(grad), x.shape[-1]
        # dW_ih = grad^T x and dW_hh = grad^T h over all steps: one product for both is faster than two.
        weights = rows.t() @ torch.cat((flat(x), flat(before)), 1) if wanted[1] or wanted[2] else rows[:0]
        return (
            (rows @ weight_ih).view_as(x) if wanted[0] else nothing(x),
            weights[:, :inputs].contiguous() if wanted[1] else nothing(x),
            weights[:, inputs:].contiguous() if wanted[2] else nothing(x),
            column_sums(rows) if wanted[3] else nothing(x),
            grad_h0,
            grad_c0,
            dense(grad_reset[0], resets, h) if wanted[6] else nothing(x),
            dense(grad_reset[1], resets, h) if wanted[7] else nothing(x),
        )


def _lstm_fake_backward(grad_h: Any, grad_c: Any, *given: Any) -> tuple[Tensor, ...]:
    del grad_h, grad_c  # shapes are those of the arguments
    x, weight_ih, weight_hh, _, h0, c0 = given[:6]
    wanted = [*given[12][:4], True, True, *given[12][6:]]
    shapes = (x.shape, weight_ih.shape, weight_hh.shape, weight_ih.shape[:1], h0.shape, c0.shape)
    states = (*x.shape[:-1], h0.shape[-1])
    return tuple(
        x.new_empty(shape if want else 0) for shape, want in zip((*shapes, states, states), wanted, strict=True)
    )


def _lstm_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    *tensors, _, kernels, precision = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.how = kernels, precision


def _lstm_gradient(ctx: Any, grad_h: Tensor | None, grad_c: Tensor | None, _: Any) -> tuple[Any, ...]:
    needs = ctx.needs_input_grad
    wanted = [*needs[:6], *needs[7:9]]
    grads = _lstm_backward(grad_h, grad_c, *ctx.saved_tensors, wanted, *ctx.how)
    given = [grad if want else None for grad, want in zip(grads, wanted, strict=True)]
    return (*given[:6], None, *given[6:], None, None, None)


_lstm_backward = define(
    f"lstm_layer_backward(Tensor? grad_h, Tensor? grad_c, {_LSTM_ARGUMENTS}, Tensor h, Tensor c, Tensor gates,"
    " bool[] wanted, str kernels, str? precision) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _lstm_run_backward,
    _lstm_fake_backward,
)
lstm_layer = define(
    f"lstm_layer({_LSTM_ARGUMENTS}, bool keep, str kernels, str? precision) -> (Tensor, Tensor, Tensor)",
    _lstm_run,
    _lstm_fake,
    _lstm_gradient,
    _lstm_setup,
)
"""States ``[T, B, H]`` after each step, and the gates if they are kept."""


# ------------------------------------------------------------------ GRU

# r, z = sigmoid(W_ih x + W_hh h + b);  m = W_hn h + b_hn;  n = tanh(W_in x + b_in + r * m);  h' = (1 - z) * n + z * h
# Four slots lie side by side in the order n, r, z, m: the inputs contribute to n, r, z and the state to r, z, m, so
# that each product reads or writes adjacent columns. `bias` has the slots b_in, b_r, b_z (the sums of both biases of
# torch) and b_hn.

_GRU_ARGUMENTS = (
    "Tensor x, Tensor weight_ih, Tensor weight_hh, Tensor? bias, Tensor h0, Tensor restart, Tensor? reset_h"
)


def _gru_projection(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute ``W_ih x + b`` of n, r and z, and ``b_hn`` of m, ``[T, B, 4H]``, to which the loop adds ``W_hh h``."""
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


def _gru_run(
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
        gates = _gru_projection(x, weight_ih, bias)
        kernels_for(kernels, x.dtype, x.device).gru_forward(gates, weight_hh.contiguous(), h0, resets, h)
    return h, gates if keep else nothing(x)


def _gru_fake(x: Tensor, weight_ih: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    del weight_ih
    width, keep = rest[2].shape[-1], rest[5]
    return x.new_empty(*x.shape[:-1], width), x.new_empty(*x.shape[:-1], 4 * width) if keep else nothing(x)


def _gru_gates(x: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor | None, before: Tensor) -> Tensor:
    """Compute the slots of all steps ``[T, B, 4H]`` in one product, from the states before each step."""
    gates, width = _gru_projection(x, weight_ih, bias), before.shape[-1]
    flat(gates)[:, width:].addmm_(flat(before), weight_hh.t())
    n, r_z, m = gates.split((width, 2 * width, width), -1)
    r_z.sigmoid_()
    n.addcmul_(r_z[..., :width], m).tanh_()
    return gates


def _gru_run_backward(
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
    grad_reset = torch.empty_like(resets.h) if resets is not None and wanted[5] else None
    with products(x.device, precision):
        if not gates.numel():  # recompute="full"
            gates = _gru_gates(x, weight_ih, weight_hh, bias, before)
        grad = torch.empty_like(gates)
        loops = kernels_for(kernels, x.dtype, x.device)
        loops.gru_backward(gates, weight_hh, h0, h, resets, grad_h.contiguous(), grad, grad_h0, grad_reset)
        rows = flat(grad)
        of_input, of_state = rows[:, : 3 * width], rows[:, width:]  # slots n, r, z and r, z, m
        return (
            (of_input @ weight_ih).view_as(x) if wanted[0] else nothing(x),
            of_input.t() @ flat(x) if wanted[1] else nothing(x),
            of_state.t() @ flat(before) if wanted[2] else nothing(x),
            column_sums(rows) if wanted[3] else nothing(x),
            grad_h0,
            dense(grad_reset, resets, h) if wanted[5] else nothing(x),
        )


def _gru_fake_backward(grad_h: Tensor, *given: Any) -> tuple[Tensor, ...]:
    x, weight_ih, weight_hh, _, h0 = given[:5]
    wanted = [*given[9][:4], True, given[9][5]]
    shapes = (x.shape, weight_ih.shape, weight_hh.shape, (4 * h0.shape[-1],), h0.shape, grad_h.shape)
    return tuple(x.new_empty(shape if want else 0) for shape, want in zip(shapes, wanted, strict=True))


def _gru_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    *tensors, _, kernels, precision = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.how = kernels, precision


def _gru_gradient(ctx: Any, grad_h: Tensor | None, _: Any) -> tuple[Any, ...]:
    if grad_h is None:
        return (None,) * 10
    needs = ctx.needs_input_grad
    wanted = [*needs[:5], needs[6]]
    grads = _gru_backward(grad_h, *ctx.saved_tensors, wanted, *ctx.how)
    given = [grad if want else None for grad, want in zip(grads, wanted, strict=True)]
    return (*given[:5], None, given[5], None, None, None)


_gru_backward = define(
    f"gru_layer_backward(Tensor grad_h, {_GRU_ARGUMENTS}, Tensor h, Tensor gates, bool[] wanted, str kernels,"
    " str? precision) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _gru_run_backward,
    _gru_fake_backward,
)
gru_layer = define(
    f"gru_layer({_GRU_ARGUMENTS}, bool keep, str kernels, str? precision) -> (Tensor, Tensor)",
    _gru_run,
    _gru_fake,
    _gru_gradient,
    _gru_setup,
)
"""States ``[T, B, H]`` after each step, and the gates if they are kept."""
