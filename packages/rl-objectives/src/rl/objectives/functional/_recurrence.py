"""The reverse linear recurrence ``x_t = d_t + c_t * x_{t+1}`` behind every return, and who computes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.nn import Parameter

from rl.core.backends import select
from rl.core.checks import same_shape
from rl.core.interfaces import LinearRecurrence

Array = np.ndarray[Any, Any]

__all__ = [
    "forget_back_ends",
    "fused_form",
    "linear_recurrence",
    "loop_recurrence",
    "recurrence_backend",
    "scan_recurrence",
    "torch_recurrence",
]

# Microseconds, float32, one CPU core: what a step of either form costs, and each element of it. `benchmarks/gae.py`
# prints both forms at many shapes.
_NUMPY_STEP, _NUMPY_ELEMENT = 1.5, 0.0035
_LOOP_STEP, _LOOP_ELEMENT = 4.0, 0.008
_SCAN_STEP, _SCAN_ELEMENT = 42.0, 0.0018
_WIDE = 32_768
"""Elements of a step from which PyTorch uses several threads for it."""
_NUMPY_TYPES = frozenset((torch.float32, torch.float64))
_PLAIN_TYPES = frozenset((Tensor, Parameter))

_is_compiling = torch.compiler.is_compiling
_is_dynamo = torch.compiler.is_dynamo_compiling
# There is no public way to ask these.
_dispatch_modes = torch._C._len_torch_dispatch_stack  # noqa: SLF001
_is_transformed = torch._C._are_functorch_transforms_active  # noqa: SLF001
_is_recorded = torch._C._is_tracing  # noqa: SLF001


def scan_recurrence(d: Tensor, c: Tensor, time_dim: int, *, select: bool = True) -> Tensor:
    """The recurrence in ``ceil(log2 T)`` steps over the whole tensor.

    Hillis and Steele, "Data parallel algorithms", 1986.

    Args:
        d: what each step adds, ``[*B, T, F]``.
        c: weight of the step that follows, same shape.
        time_dim: where time is.
        select: whether ``x_t = d_t`` where ``c_t`` is 0, whatever follows, NaN and infinity included; otherwise these
            are multiplied by 0, which is faster.

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
        weight, following = c.narrow(time_dim, 0, left), d.narrow(time_dim, reach, left)
        beyond = c.narrow(time_dim, reach, left)
        if select:
            cut = weight == 0
            following, beyond = following.masked_fill(cut, 0), beyond.masked_fill(cut, 0)
        head = torch.addcmul(d.narrow(time_dim, 0, left), weight, following)
        d = torch.cat((head, d.narrow(time_dim, left, reach)), time_dim)
        if 2 * reach < steps:
            head = weight * beyond
            c = torch.cat((head, c.narrow(time_dim, left, reach)), time_dim)
        reach *= 2
    return d if reach > 1 else d.clone()


def loop_recurrence(d: Tensor, c: Tensor, time_dim: int) -> Tensor:
    """The recurrence, one step of time after the other; arguments and result as for `scan_recurrence`.

    Example:
        >>> loop_recurrence(torch.ones(3), torch.full((3,), 0.5), 0)
        tensor([1.7500, 1.5000, 1.0000])
    """
    found = _loop(d, c, time_dim, numpy=_is_for_numpy(d, c, time_dim) and not _is_watched())
    return found if _starts_finite(found, time_dim) else scan_recurrence(d, c, time_dim)


def _starts_finite(x: Tensor, time_dim: int) -> bool:
    """Whether all first steps are finite: then no step is infinite or NaN, since a product keeps both."""
    return not x.shape[time_dim] or bool(x.select(time_dim, 0).isfinite().all())


def _loop(d: Tensor, c: Tensor, time_dim: int, *, numpy: bool) -> Tensor:
    if not d.shape[time_dim]:
        return d.clone()
    if numpy:
        return _numpy_loop(d, c, time_dim)
    # Time first, so that each step touches contiguous memory.
    out = d.detach().transpose(0, time_dim).clone(memory_format=torch.contiguous_format)
    rows, weights = out.unbind(0), c.detach().transpose(0, time_dim).contiguous().unbind(0)
    for t in range(len(rows) - 2, -1, -1):
        rows[t].addcmul_(weights[t], rows[t + 1])
    return out.transpose(0, time_dim)


def _numpy_loop(d: Tensor, c: Tensor, time_dim: int) -> Tensor:
    """The loop in numpy, of which a call costs a third of one of PyTorch, in memory that both share."""
    out: Array = np.array(d.numpy(force=True).swapaxes(0, time_dim), order="C")
    rows = out.reshape(len(out), -1)
    weights: Array = np.ascontiguousarray(c.numpy(force=True).swapaxes(0, time_dim)).reshape(rows.shape)
    following = rows[-1]
    product = np.empty_like(following)
    with np.errstate(all="ignore"):  # as PyTorch does
        for row, weight in zip(rows[-2::-1], weights[-2::-1], strict=True):
            np.multiply(weight, following, product)
            np.add(row, product, row)
            following = row
    return torch.from_numpy(out.swapaxes(0, time_dim))  # pyright: ignore[reportUnknownMemberType] - not typed


def _is_for_numpy(d: Tensor, c: Tensor, time_dim: int) -> bool:
    if d.dtype not in _NUMPY_TYPES or c.dtype is not d.dtype or not (d.is_cpu and c.is_cpu):
        return False
    plain = type(d) in _PLAIN_TYPES and type(c) in _PLAIN_TYPES
    return plain and d.numel() < _WIDE * d.shape[time_dim]


def _is_watched() -> bool:
    """Whether somebody looks at the operators that run: then no others will do, and none in place."""
    return _is_compiling() or _dispatch_modes() > 0 or _is_transformed() or _is_recorded() or _is_dual()


def _is_dual() -> bool:
    """Whether derivatives may travel with the numbers, forward; no back end knows them."""
    return forward_ad._current_level >= 0  # noqa: SLF001 - there is no public way to ask


def _run(d: Tensor, c: Tensor, time_dim: int) -> Tensor:
    """By the form that is expected to be the fastest; on the CPU one that selects only if that changes the result."""
    if not d.is_cpu:
        return scan_recurrence(d, c, time_dim)
    found = _fastest(d, c, time_dim)
    return found if _starts_finite(found, time_dim) else scan_recurrence(d, c, time_dim)


def _fastest(d: Tensor, c: Tensor, time_dim: int) -> Tensor:
    steps, elements = d.shape[time_dim], d.numel()
    numpy = _is_for_numpy(d, c, time_dim)
    loop = steps * (_NUMPY_STEP if numpy else _LOOP_STEP) + elements * (_NUMPY_ELEMENT if numpy else _LOOP_ELEMENT)
    if loop < (steps - 1).bit_length() * (_SCAN_STEP + _SCAN_ELEMENT * elements) or steps == 1:
        return _loop(d, c, time_dim, numpy=numpy)
    return scan_recurrence(d, c, time_dim, select=False)


class _Differentiable(Function):
    """The recurrence with its derivative, which is the same recurrence run the other way."""

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
        # g_t = grad_t + c_{t-1} * g_{t-1}. The weight that rolls over to the far end is never read.
        g = torch_recurrence(grad.flip(dim), c.flip(dim).roll(-1, dim), dim).flip(dim)
        if not ctx.needs_input_grad[1]:
            return g, None, None
        steps = x.shape[dim]
        following = torch.cat((x.narrow(dim, 1, steps - 1), torch.zeros_like(x.narrow(dim, 0, 1))), dim)
        return g, g * following, None


def torch_recurrence(d: Tensor, c: Tensor, time_dim: int) -> Tensor:
    """The recurrence in plain PyTorch, by whichever form is expected to be faster; differentiable any number of times.

    Arguments and result as for `scan_recurrence`.

    Raises:
        ShapeError: if `d` and `c` differ in shape.

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
    """Who computes the recurrence for tensors of that kind: the first plugin that answers `rl_linear_recurrence`.

    Args:
        device: of the tensors.
        dtype: of the tensors.

    Example:
        >>> callable(recurrence_backend(torch.device("cpu"), torch.float32))
        True
    """
    arguments = {"device": device, "dtype": dtype}
    where = f"{device} and {dtype}"
    return select("value estimators", "rl_linear_recurrence", arguments, where=where, fallback="rl-objectives")[0]


_on_cpu: dict[tuple[str, torch.dtype], Callable[..., Any] | None] = {}
"""What `fused_form` found, of back ends that can be traced: to look for it again takes as long as a small batch."""


def forget_back_ends() -> None:
    """Ask the plugins again at the next call: others are there now.

    Example:
        >>> forget_back_ends()
    """
    recurrence_backend.cache_clear()
    _on_cpu.clear()


class _Traced:
    """The back ends that compiled code calls, as attributes: a compiler watches these, but no object from nowhere."""


_traced = _Traced()


@torch.compiler.assume_constant_result
def _answer(device: torch.device, dtype: torch.dtype) -> str:
    """For compilers, which cannot look into the registry: the attribute that holds the answer; "" if not traceable."""
    found = recurrence_backend(device, dtype)
    if not getattr(found, "traceable", False):
        return ""
    name = f"{device}_{dtype}".replace(".", "_").replace(":", "_")
    setattr(_traced, name, found)
    return name


def _chosen(like: Tensor) -> LinearRecurrence | None:
    """The back end for tensors like that one; None while `torch.compile` traces and it is not ``traceable``."""
    if not torch.compiler.is_compiling():
        return recurrence_backend(like.device, like.dtype)
    name = _answer(like.device, like.dtype)
    return getattr(_traced, name) if name else None


def fused_form(name: str, like: Tensor) -> Callable[..., Any] | None:
    """A return that the back end computes whole, in one pass; None if it does not.

    What is called may still answer None: then it has computed nothing, and the caller composes the return.

    Args:
        name: of an optional method of `rl.core.interfaces.LinearRecurrence`.
        like: has the device and type of the rewards.

    Example:
        >>> fused_form("no such return", torch.zeros(1)) is None
        True
    """
    if not _is_dynamo() and like.is_cpu:  # which takes half as long as to ask for all that trace
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
    """The recurrence by the best installed back end.

    While `torch.compile` traces, one that is not ``traceable`` is left out, and the compiler fuses the plain PyTorch
    scan. The plain scan also runs where derivatives travel forward (`torch.autograd.forward_ad`, `torch.func.jvp`).

    Arguments and result as for `scan_recurrence`.

    Raises:
        ShapeError: if `d` and `c` differ in shape.

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
