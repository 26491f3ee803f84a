"""The reverse linear recurrence ``x_t = d_t + c_t * x_{t+1}`` of all returns, and the selection of its back end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import isqrt
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from rl.core.arguments import same_shape
from rl.core.backends import select
from rl.core.errors import ArgumentError, ShapeError
from rl.core.interfaces import LinearRecurrence

_is_compiling = torch.compiler.is_compiling
_is_dynamo = torch.compiler.is_dynamo_compiling
# There is no public function for these.
_dispatch_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001
_is_transformed = torch._C._are_functorch_transforms_active  # noqa: SLF001
_is_recorded = torch._C._is_tracing  # noqa: SLF001


def scan_recurrence(d: Tensor, c: Tensor, time_dim: int) -> Tensor:
    """Compute the recurrence in ``ceil(log2 T)`` operations on the entire tensor.

    Hillis and Steele, "Data parallel algorithms", 1986. Where ``c_t`` is 0, ``x_t = d_t``, also if NaN or infinity
    follows.

    Args:
        d: Addend of each step, ``[*B, T, F]``.
        c: Weight of the following step, same shape.
        time_dim: Dimension of time.

    Returns:
        ``x_t = d_t + c_t * x_{t+1}`` with ``x_T = 0``, same shape.

    Example:
        >>> scan_recurrence(torch.ones(3), torch.full((3,), 0.5), 0)
        tensor([1.7500, 1.5000, 1.0000])
    """
    steps = d.shape[time_dim]
    reach = 1
    while reach < steps:
        left = steps - reach
        # Row t covers steps t .. t + reach - 1; what follows starts in row t + reach. The last rows are complete.
        weight, cut = c.narrow(time_dim, 0, left), c.narrow(time_dim, 0, left) == 0
        following = d.narrow(time_dim, reach, left).masked_fill(cut, 0)
        head = torch.addcmul(d.narrow(time_dim, 0, left), weight, following)
        d = torch.cat((head, d.narrow(time_dim, left, reach)), time_dim)
        if 2 * reach < steps:
            head = weight * c.narrow(time_dim, reach, left).masked_fill(cut, 0)
            c = torch.cat((head, c.narrow(time_dim, left, reach)), time_dim)
        reach *= 2
    return d if reach > 1 else d.clone()


def _block_recurrence(d: Tensor, c: Tensor, time_dim: int) -> Tensor:
    """Compute the recurrence in about ``3 sqrt(T)`` operations: within blocks of time in parallel, then across blocks.

    Multiplies what follows by 0 where ``c_t`` is 0: NaN or infinity there reaches all steps before.
    """
    d, c = d.detach().transpose(0, time_dim), c.detach().transpose(0, time_dim)
    steps, rest = d.shape[0], d.shape[1:]
    length = isqrt(steps - 1) + 1
    blocks = -(-steps // length)
    x, weight = d.new_zeros(blocks * length, *rest), c.new_zeros(blocks * length, *rest)
    x[:steps], weight[:steps] = d, c
    x_blocks, weight_blocks = (y.view(blocks, length, *rest) for y in (x, weight))
    xs, weights = x_blocks.unbind(1), weight_blocks.unbind(1)
    for t in range(length - 2, -1, -1):
        xs[t].addcmul_(weights[t], xs[t + 1])
        weights[t].mul_(weights[t + 1])
    for k in range(blocks - 2, -1, -1):
        x_blocks[k].addcmul_(weight_blocks[k], xs[0][k + 1])
    return x[:steps].transpose(0, time_dim)


def _is_watched() -> bool:
    """Return whether a compiler, a dispatch mode, `torch.func`, a trace or forward-mode AD is active."""
    return _is_compiling() or _dispatch_modes() > 0 or _is_transformed() or _is_recorded() or _is_dual()


def _is_dual() -> bool:
    """Return whether forward-mode AD is on, which no back end supports."""
    return forward_ad._current_level >= 0  # noqa: SLF001 - there is no public function


def _run(d: Tensor, c: Tensor, time_dim: int) -> Tensor:
    """Run by blocks on a CPU, unless NaN or infinity has to stop where ``c_t`` is 0; by the scan elsewhere."""
    if d.is_cpu:
        found = _block_recurrence(d, c, time_dim)
        if bool(found.select(time_dim, 0).isfinite().all()):  # a sum or product with NaN or infinity is not finite
            return found
    return scan_recurrence(d, c, time_dim)


class _Differentiable(Function):
    """The recurrence and its derivative, which is the same recurrence forward in time."""

    @staticmethod
    def forward(ctx: Any, d: Tensor, c: Tensor, time_dim: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride] - torch declares *args
        x = _run(d, c, time_dim)
        ctx.save_for_backward(c, x)
        ctx.time_dim = time_dim
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # pyright: ignore[reportIncompatibleMethodOverride] - torch declares *args
        c, x = ctx.saved_tensors
        dim: int = ctx.time_dim
        # g_t = grad_t + c_{t-1} * g_{t-1}. The weight that rolls over to the other end is not read.
        g = torch_recurrence(grad.flip(dim), c.flip(dim).roll(-1, dim), dim).flip(dim)
        if not ctx.needs_input_grad[1]:
            return g, None, None
        steps = x.shape[dim]
        following = torch.cat((x.narrow(dim, 1, steps - 1), torch.zeros_like(x.narrow(dim, 0, 1))), dim)
        return g, g * following, None


def torch_recurrence(d: Tensor, c: Tensor, time_dim: int) -> Tensor:
    """Compute the recurrence in plain PyTorch; differentiable any number of times.

    Arguments and result are those of `scan_recurrence`.

    Raises:
        ShapeError: If `d` and `c` differ in shape.

    Example:
        >>> torch_recurrence(torch.ones(1, 3, 1), torch.full((1, 3, 1), 0.5), -2).flatten()
        tensor([1.7500, 1.5000, 1.0000])
    """
    shape = d.shape
    if c.shape != shape:
        same_shape(d=d, c=c)
    dim = time_dim % len(shape)
    if not shape[dim]:
        return d.clone()
    if _is_watched():
        return scan_recurrence(d, c, dim)
    if torch.is_grad_enabled() and (d.requires_grad or c.requires_grad):
        return _Differentiable.apply(d, c, dim)  # pyright: ignore[reportReturnType] - apply is not typed
    return _run(d, c, dim)


@cache
def recurrence_backend(device: torch.device, dtype: torch.dtype) -> LinearRecurrence:
    """Return the back end of the recurrence: the first plugin that answers `rl_linear_recurrence`.

    Args:
        device: Device of the tensors.
        dtype: Dtype of the tensors.

    Example:
        >>> callable(recurrence_backend(torch.device("cpu"), torch.float32))
        True
    """
    arguments = {"device": device, "dtype": dtype}
    where = f"{device} and {dtype}"
    return select("value estimators", "rl_linear_recurrence", arguments, where=where, fallback="rl-objectives")[0]


_on_cpu: dict[tuple[str, torch.dtype], Callable[..., Any] | None] = {}
"""Results of `fused_form` for traceable back ends: the look-up takes as long as a small batch."""


def forget_back_ends() -> None:
    """Select back ends again at the next call.

    Example:
        >>> forget_back_ends()
    """
    recurrence_backend.cache_clear()
    _on_cpu.clear()


class _Traced:
    """Selected back ends as attributes, so that dynamo can guard on them."""


_traced = _Traced()


@torch.compiler.assume_constant_result
def _answer(device: torch.device, dtype: torch.dtype) -> str:
    """Return to a compiler the attribute of `_traced` that holds the back end; "" if it is not traceable."""
    found = recurrence_backend(device, dtype)
    if not getattr(found, "traceable", False):
        return ""
    name = f"{device}_{dtype}".replace(".", "_").replace(":", "_")
    setattr(_traced, name, found)
    return name


def _chosen(like: Tensor) -> LinearRecurrence | None:
    """Return the back end for tensors like `like`; None while `torch.compile` traces and it is not ``traceable``."""
    if not torch.compiler.is_compiling():
        return recurrence_backend(like.device, like.dtype)
    name = _answer(like.device, like.dtype)
    return getattr(_traced, name) if name else None


def fused_form(name: str, like: Tensor) -> Callable[..., Any] | None:
    """Return the method of the back end that computes a complete return in one pass; None without one.

    The method may return None: it has computed nothing then, and the caller composes the return.

    Args:
        name: An optional method of `rl.core.interfaces.LinearRecurrence`.
        like: Tensor with the device and dtype of the rewards.

    Example:
        >>> fused_form("no such return", torch.zeros(1)) is None
        True
    """
    if not _is_dynamo() and like.is_cpu:  # twice as fast as `torch.compiler.is_compiling`
        try:
            return _on_cpu[name, like.dtype]
        except KeyError:
            pass
    tracing = _is_compiling()
    backend = _chosen(like) if tracing else recurrence_backend(like.device, like.dtype)
    form = getattr(backend, name, None)
    if not tracing and like.is_cpu and getattr(backend, "traceable", False):
        _on_cpu[name, like.dtype] = form
    return form


def linear_recurrence(d: Tensor, c: Tensor, time_dim: int) -> Tensor:
    """Compute the recurrence with the installed back end.

    The plain PyTorch scan runs instead under forward-mode AD (`torch.autograd.forward_ad`, `torch.func.jvp`), and under
    `torch.compile` if the back end is not ``traceable``.

    Arguments and result are those of `scan_recurrence`.

    Raises:
        ShapeError: If `d` and `c` differ in shape.

    Example:
        >>> linear_recurrence(torch.ones(1, 3, 1), torch.full((1, 3, 1), 0.5), -2).flatten()
        tensor([1.7500, 1.5000, 1.0000])
    """
    if d.shape != c.shape:
        same_shape(d=d, c=c)
    backend = _chosen(d)
    if not _is_compiling() and _is_dual():
        backend = None
    return torch_recurrence(d, c, time_dim) if backend is None else backend(d, c, time_dim)


Pair = tuple[Tensor, Tensor]


def write(out: Sequence[Tensor], found: Sequence[Tensor], inputs: Sequence[object]) -> None:
    """Copy results into the tensors of the caller.

    Args:
        out: Tensors of the caller.
        found: Results.
        inputs: Arguments of the computation; tensors among them must not share memory with `out`.

    Raises:
        ShapeError: If a shape differs; nothing is written then.
        ArgumentError: If their number, a dtype or a device differs, one requires a gradient, or memory is shared.
    """
    if len(out) != len(found):
        raise ArgumentError(f"out has {len(out)} tensor(s); there are {len(found)} results, each needs one")
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    for one, result in zip(out, found, strict=True):
        if one.shape != result.shape:
            raise ShapeError(f"out has shape {tuple(one.shape)}; it must have {tuple(result.shape)}, as the inputs do")
        if one.dtype != result.dtype or one.device != result.device:
            raise ArgumentError(
                f"out is {one.dtype} on {one.device}; it must be {result.dtype} on {result.device}, as the result is"
            )
        if one.requires_grad or result.requires_grad:
            raise ArgumentError("out takes no gradient: call this under torch.no_grad(), or leave out away")
        check_apart(one, tensors)
        tensors.append(one)
    for one, result in zip(out, found, strict=True):
        one.copy_(result)


def check_apart(out: Tensor, others: Sequence[Tensor]) -> None:
    """Raise if `out` shares memory with itself or another tensor; not checked in compiled code, which has no addresses.

    Raises:
        ArgumentError: If it does.
    """
    if torch.compiler.is_compiling():
        return
    if any(step == 0 and size > 1 for size, step in zip(out.shape, out.stride(), strict=True)):
        raise ArgumentError("several elements of out share memory; give it memory of its own")
    first, end = _span(out)
    for other in others:
        start, stop = _span(other)
        if first < stop and start < end:
            raise ArgumentError("out overlaps an input or the other out; give it memory of its own")


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return the first address, and the one after the last."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()
