"""Calls of `csrc/returns/returns.c`: argument checks, and tensors of one shape packed as `returns.h` declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import prod
from struct import Struct
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.library import Library, register_autograd, register_fake
from torch.nn import Parameter

from rl.core.errors import ArgumentError, ShapeError
from rl.native._library import require

PLAIN, GAE, TD_LAMBDA, VTRACE = range(4)

Slots = tuple[
    Tensor,  # reward, or d
    Tensor | None,  # value
    Tensor | None,  # next value
    Tensor | None,  # importance ratio
    Tensor | None,  # gamma by step, or c
    Tensor | None,  # lambda by step
    Tensor | None,  # done
    Tensor | None,  # terminated
]
"""Inputs in the order of ``rl_returns_slot``."""

OUT = 8
BITS = {torch.float32: 32, torch.float64: 64}

_FLAGS = 6  # first slot of the flags
_STRIDED = torch.strided
_PLAIN_TYPES = frozenset((Tensor, Parameter))
_pack_head = Struct("=6q4d10q").pack
_pack_strides = Struct("=30q").pack


@cache
def _entry() -> Callable[[bytes], int]:
    from ctypes import c_char_p, c_int32

    function = require().rl_returns
    function.argtypes, function.restype = [c_char_p], c_int32
    return function


def dimension(time_dim: int, shape: torch.Size) -> int:
    """`time_dim` as a nonnegative number.

    Raises:
        ShapeError: If a tensor of `shape` does not have it.
    """
    dims = len(shape)
    if 0 <= time_dim < dims:
        return time_dim
    if not -dims <= time_dim < 0:
        raise ShapeError(f"time_dim is {time_dim}, which a tensor of shape {tuple(shape)} does not have")
    return time_dim + dims


def is_supported(inputs: Slots, *, traced: bool) -> bool:
    """Return whether the kernels accept these tensors, whatever their strides.

    Args:
        inputs: Numbers and flags; those that the kind needs are given.
        traced: Whether operators are traced: classes and memory are not examined then.

    Returns:
        Whether all have one shape, the numbers one dtype (float32 or float64) and the flags bool, all are on the CPU,
        and none needs a gradient.
    """
    first = inputs[0]
    shape, dtype, grad = first.shape, first.dtype, torch.is_grad_enabled()
    if dtype not in BITS:
        return False
    for slot, tensor in enumerate(inputs):
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor) if traced else type(tensor) not in _PLAIN_TYPES:
            return False
        if tensor.dtype is not (dtype if slot < _FLAGS else torch.bool) or not tensor.is_cpu:
            return False
        if (grad and tensor.requires_grad) or (tensor is not first and tensor.shape != shape):
            return False
        if not traced and not has_memory(tensor):
            return False
    return True


def has_memory(tensor: Tensor) -> bool:
    """Return whether the elements are in memory; false for sparse tensors, freed storages and symbolic zeros."""
    return tensor.layout is _STRIDED and (tensor.data_ptr() != 0 or not tensor.numel())


_NAMES = ("reward or d", "value", "next_value", "ratio", "gammas or c", "lmbdas", "done", "terminated")


def check_inputs(inputs: Slots, needed: Sequence[int], time_dim: int) -> int:
    """Require tensors that a kernel can read, for operators, which everyone can call; return `time_dim`, nonnegative.

    Args:
        inputs: Numbers and flags.
        needed: Slots whose tensors must not be None.
        time_dim: Dimension of time.

    Raises:
        ShapeError: If shapes differ, or the dimension does not exist.
        ArgumentError: If a dtype or device is not supported, or a tensor is absent or has no memory.
    """
    first = inputs[0]
    if first.dtype not in BITS:
        raise ArgumentError(
            f"rl_native: {_NAMES[0]} is {first.dtype}; the kernels are for torch.float32 and torch.float64"
        )
    for slot, (name, tensor) in enumerate(zip(_NAMES, inputs, strict=True)):
        if tensor is None:
            if slot in needed:
                raise ArgumentError(f"rl_native: {name} is None; the kernel reads it")
            continue
        dtype = first.dtype if slot < _FLAGS else torch.bool
        if tensor.shape != first.shape:
            raise ShapeError(f"rl_native: {name} is {list(tensor.shape)}, expected {list(first.shape)} as the first is")
        if tensor.dtype is not dtype or not tensor.is_cpu:
            raise ArgumentError(f"rl_native: {name} is {tensor.dtype} on {tensor.device}, expected {dtype} on the CPU")
        if not has_memory(tensor) or _ends_outside(tensor):
            raise ArgumentError(f"rl_native: {name} of shape {list(tensor.shape)} has no memory: its storage was freed")
    return dimension(time_dim, first.shape)


def _ends_outside(tensor: Tensor) -> bool:
    """Return whether elements lie behind the end of the storage, as after it was resized."""
    if not tensor.numel():
        return False
    last = tensor.storage_offset() + sum((size - 1) * step for size, step in _axes(tensor))
    return (last + 1) * tensor.element_size() > tensor.untyped_storage().nbytes()


def compute(
    kind: int,
    inputs: Slots,
    dim: int,
    gamma: float,
    lmbda: float,
    rho_bar: float = 0.0,
    c_bar: float = 0.0,
    *,
    out: Tensor | Sequence[Tensor] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute a return, into new memory or into `out`, which `check_out` has checked.

    Returns:
        One tensor of TD(lambda), otherwise the advantage and the value target.
    """
    like = inputs[0]
    if kind == TD_LAMBDA:
        single = torch.empty_like(like) if out is None else out
        assert isinstance(single, Tensor)
        run(kind, inputs, (single, None), dim, gamma, lmbda)
        return single
    first, second = (torch.empty_like(like), torch.empty_like(like)) if out is None else out
    run(kind, inputs, (first, second), dim, gamma, lmbda, rho_bar, c_bar)
    return first, second


def run(
    kind: int,
    inputs: Slots,
    out: tuple[Tensor, Tensor | None],
    dim: int,
    gamma: float = 0.0,
    lmbda: float = 0.0,
    rho_bar: float = 0.0,
    c_bar: float = 0.0,
) -> None:
    """Run a kernel.

    Args:
        kind: Value of ``rl_returns_kind``.
        inputs: Tensors of one shape, on the CPU; numbers of the dtype of the first, flags bool.
        out: Results, written; they overlap nothing.
        dim: Dimension of time, nonnegative.
        gamma: Discount, used where there is no tensor of discounts.
        lmbda: Lambda, used where there is no tensor of lambdas.
        rho_bar: Clipping threshold of the importance weight of V-trace.
        c_bar: Clipping threshold of the trace of V-trace.
    """
    tensors: tuple[Tensor | None, ...] = (*inputs, *out)
    outer, steps, inner = _sizes(inputs[0], dim)
    if not outer * steps * inner:
        return
    addresses, strided = [], False
    for tensor in tensors:
        if tensor is None:
            addresses.append(0)
            continue
        if not tensor.is_contiguous() or tensor.is_neg():
            strided = True
            break
        addresses.append(tensor.data_ptr())
    strides = b""
    copies: Sequence[Tensor | None] = ()
    if strided:
        layouts = [(None, (0, 0, 0)) if tensor is None else _layout(tensor, dim) for tensor in tensors]
        copies = [copy for copy, _ in layouts]
        addresses = [0 if copy is None else copy.data_ptr() for copy in copies]
        strides = _pack_strides(*(step for _, steps in layouts for step in steps))
    bits = BITS[inputs[0].dtype]
    _entry()(_pack_head(kind, bits, outer, steps, inner, strided, gamma, lmbda, rho_bar, c_bar, *addresses) + strides)
    for target, copy in zip(out, copies[OUT:], strict=False):
        if target is not None and copy is not None and copy is not target:
            target.copy_(copy)


def _sizes(tensor: Tensor, dim: int) -> tuple[int, int, int]:
    """Numbers of elements before, along and after a dimension."""
    shape = tuple(tensor.shape)
    return prod(shape[:dim]), shape[dim], prod(shape[dim + 1 :])


def run_forward(d: Tensor, c: Tensor, out: Tensor, dim: int) -> None:
    """``y_t = d_t + c_{t-1} * y_{t-1}``: the recurrence forward in time, by negative strides.

    Args:
        d: Addend of each step, on the CPU.
        c: Coefficient of each step, of the same shape and dtype; its last step is not read.
        out: Result, of the same shape and dtype; it overlaps neither.
        dim: Dimension of time, nonnegative.
    """
    outer, steps, inner = _sizes(d, dim)
    if not outer * steps * inner:
        return
    addresses, strides, copies = [0] * 10, [0] * 30, [_layout(tensor, dim) for tensor in (d, c, out)]
    # Step t reads the weight of step t - 1; the kernel does not read the one of the first step.
    starts = (steps - 1, max(steps - 2, 0), steps - 1)
    for slot, (copy, (before, time, after)), start in zip((0, 4, OUT), copies, starts, strict=True):
        addresses[slot] = copy.data_ptr() + start * time * d.element_size()
        strides[3 * slot : 3 * slot + 3] = before, -time, after
    head = _pack_head(PLAIN, BITS[d.dtype], outer, steps, inner, 1, 0.0, 0.0, 0.0, 0.0, *addresses)
    _entry()(head + _pack_strides(*strides))
    if copies[-1][0] is not out:
        out.copy_(copies[-1][0])


def _layout(tensor: Tensor, dim: int) -> tuple[Tensor, tuple[int, int, int]]:
    """Return a tensor as ``[outer, time, inner]`` with strides; a dense copy where its strides do not collapse."""
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    strides = _collapsed(tensor, dim)
    if strides is None:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
        strides = _collapsed(tensor, dim)
        assert strides is not None
    return tensor, strides


def _collapsed(tensor: Tensor, dim: int) -> tuple[int, int, int] | None:
    sizes, strides = tensor.shape, tensor.stride()
    before, after = _merged(sizes[:dim], strides[:dim]), _merged(sizes[dim + 1 :], strides[dim + 1 :])
    return None if before is None or after is None else (before, strides[dim], after)


def _merged(sizes: Sequence[int], strides: Sequence[int]) -> int | None:
    """Return the stride of several dimensions as one; None if they do not collapse."""
    innermost, following = 1, None
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size == 1:
            continue
        if following is None:
            innermost = stride
        elif stride != following:
            return None
        following = stride * size
    return innermost


def check_out(out: Sequence[Tensor], inputs: Sequence[Tensor | None], like: Tensor) -> None:
    """Require outputs that a kernel can write.

    Args:
        out: Outputs.
        inputs: Tensors that the kernel reads.
        like: Tensor with the required shape and dtype.

    Raises:
        ShapeError: If a shape differs.
        ArgumentError: If a dtype or device differs, an output requires a gradient, or memory is shared.
    """
    spans = [_span(tensor) for tensor in inputs if tensor is not None]
    for tensor in out:
        if tensor.shape != like.shape:
            raise ShapeError(f"out has shape {tuple(tensor.shape)}; it must have {tuple(like.shape)}, as the inputs do")
        if tensor.dtype != like.dtype or not tensor.is_cpu:
            raise ArgumentError(f"out is {tensor.dtype} on {tensor.device}; it must be {like.dtype} on the CPU")
        if not has_memory(tensor):
            raise ArgumentError("out has no memory: its storage was freed")
        if tensor.requires_grad:
            raise ArgumentError("out requires a gradient, which writing in place would lose; detach it")
        if not tensor.is_contiguous() and any(step == 0 < size - 1 for size, step in _axes(tensor)):
            raise ArgumentError("several elements of out share memory; give it memory of its own")
        first, last = span = _span(tensor)
        if any(first < end and start < last for start, end in spans):
            raise ArgumentError("out overlaps an input or the other out; give it memory of its own")
        spans.append(span)


def _axes(tensor: Tensor) -> Iterable[tuple[int, int]]:
    return zip(tensor.shape, tensor.stride(), strict=True)


def _span(tensor: Tensor) -> tuple[int, int]:
    """First address, and the one after the last."""
    start, elements = tensor.data_ptr(), tensor.numel()
    if elements and not tensor.is_contiguous():
        elements = sum((size - 1) * step for size, step in _axes(tensor)) + 1
    return start, start + elements * tensor.element_size()


library = Library("rl_native", "FRAGMENT")
"""Keeps the definitions alive."""

_COEFFICIENTS = "Tensor? gammas, Tensor? lmbdas, float gamma, float lmbda, int time_dim"
_ENDS = "Tensor done, Tensor terminated"
library.define("linear_recurrence(Tensor d, Tensor c, int time_dim, bool forward) -> Tensor")
library.define(f"gae(Tensor value, Tensor next_value, Tensor reward, {_ENDS}, {_COEFFICIENTS}) -> (Tensor, Tensor)")
library.define(f"td_lambda(Tensor? next_value, Tensor reward, {_ENDS}, {_COEFFICIENTS}) -> Tensor")
library.define(
    f"vtrace(Tensor ratio, Tensor value, Tensor next_value, Tensor reward, {_ENDS}, {_COEFFICIENTS}, float rho_bar,"
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
    """Return the following step; zero at the end."""
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
