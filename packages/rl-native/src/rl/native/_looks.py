"""What there is to know of the arguments of a return where C, see `csrc/returns_python.c`, found an unusual one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Parameter

from rl.native import _recurrence_ops as _ops
from rl.native._returns import BITS, GAE, TD_LAMBDA, VTRACE, dimension, is_without_memory, refuse_out, run
from rl.native._traced import is_dual, is_transformed

__all__ = ["Inputs", "Job", "are_taken", "coefficient", "run_closer", "run_traced"]

Inputs = tuple[
    Tensor,  # reward
    Tensor | None,  # value
    Tensor | None,  # next value
    Tensor | None,  # ratio
    Tensor | None,  # log_pi
    Tensor | None,  # log_mu
    Tensor | None,  # gamma
    Tensor | None,  # lambda
    Tensor,  # done
    Tensor,  # terminated
]
"""In the order of ``rl_returns_slot``."""

Out = tuple[Tensor, Tensor | None]

Job = tuple[int, int, float | Tensor, float | Tensor, float, float, *Inputs]
"""kind, dimension of time, gamma, lambda, rho_bar, c_bar, inputs: what the function of C takes."""

_FLAGS = 8
"""Where flags begin among them."""

_NEEDED = {GAE: [(0, 1, 2)], TD_LAMBDA: [(0,)], VTRACE: [(0, 1, 2, 3), (0, 1, 2, 4, 5)]}
"""Numbers that a return cannot do without: one of these sets of them."""

_PLAIN_TYPES = frozenset((Tensor, Parameter))
_is_compiling = torch.compiler.is_compiling
_OPS = torch.ops.rl_native
assert _ops.library is not None  # what `_OPS` holds comes from there


def coefficient(value: float | Tensor, like: Tensor, *, traced: bool) -> tuple[float, Tensor | None]:
    """A coefficient as a number, or as a tensor by step."""
    if not isinstance(value, Tensor):
        return float(value), None
    if value.ndim:
        return 0.0, value
    if not traced and not (value.requires_grad and torch.is_grad_enabled()):
        return float(value.to(like.dtype)), None
    return 0.0, value.to(like).expand(like.shape)


def are_taken(numbers: Sequence[Tensor | None], flags: Sequence[Tensor], *, traced: bool) -> bool:
    """Whether the kernels take the arguments, wherever in memory of the CPU their elements are.

    Args:
        numbers: float32 or float64, all as the first one.
        flags: bool.
        traced: from `is_traced`: what is to be known of memory is not asked then.

    Returns:
        Whether all are of one shape, on the CPU and of their type, and none asks for a gradient.
    """
    first = numbers[0]
    assert first is not None
    shape, dtype = first.shape, first.dtype
    if dtype not in BITS or (traced and not _is_compiling() and (is_dual() or is_transformed())):
        return False
    present = [tensor for tensor in numbers if tensor is not None]
    for tensor, kind in (*((tensor, dtype) for tensor in present), *((tensor, torch.bool) for tensor in flags)):
        if not isinstance(tensor, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance] - to read from 0 ends the process
            return False
        if tensor.shape != shape or not tensor.is_cpu or tensor.dtype is not kind:
            return False
        if (tensor.requires_grad and torch.is_grad_enabled()) or not (traced or type(tensor) in _PLAIN_TYPES):
            return False
        if not traced and is_without_memory(tensor):
            return False
    return True


def run_traced(kind: int, inputs: Inputs, time_dim: int, weights: Sequence[float]) -> Any:
    """A return as an operator, for who traces the call; None if it is for others to compute, or there is none.

    Args:
        kind: of ``rl_returns_kind``.
        inputs: of the call.
        time_dim: where time is.
        weights: gamma, lambda and thresholds, as `run` takes them.

    Raises:
        ShapeError: if there is no such dimension.
    """
    reward, value, following, ratio, *_ = inputs
    if kind == VTRACE and ratio is None:
        return None
    if not _complete(kind, inputs) or not are_taken(inputs[:_FLAGS], inputs[_FLAGS:], traced=True):
        return None
    gamma, lmbda, rho_bar, c_bar = weights
    more = *inputs[_FLAGS:], *inputs[6:_FLAGS], gamma, lmbda, dimension(time_dim, reward.shape)
    if kind == GAE:
        return _OPS.gae(value, following, reward, *more)
    if kind == TD_LAMBDA:
        return _OPS.td_lambda(following, reward, *more)
    return _OPS.vtrace(ratio, value, following, reward, *more, float(rho_bar), float(c_bar))


def _complete(kind: int, inputs: Inputs) -> bool:
    """Whether all numbers are there that a return cannot do without."""
    return any(all(inputs[slot] is not None for slot in slots) for slots in _NEEDED[kind])


def run_closer(kind: int, inputs: Inputs, out: Out, time_dim: int, weights: Sequence[float], *, fresh: bool) -> bool:
    """What C did not do at once because an argument is unusual.

    Args:
        kind: of ``rl_returns_kind``.
        inputs: of the call.
        out: what is to be written: two tensors, or one and None.
        time_dim: where time is.
        weights: gamma, lambda and thresholds, as `run` takes them.
        fresh: nobody else has seen `out`.

    Returns:
        False if it is for others to compute: nothing is written then.

    Raises:
        ShapeError: if there is no such dimension, or an output has another shape.
        SpecError: if an output cannot be written.
    """
    if not _complete(kind, inputs) or not are_taken(inputs[:_FLAGS], inputs[_FLAGS:], traced=False):
        return False
    dim = dimension(time_dim, inputs[0].shape)
    if not fresh:
        given = [tensor for tensor in out if tensor is not None]
        refuse_out(given, inputs, inputs[0])
        increment_version(given)
    run(kind, (*inputs, *out), dim, *weights)
    return True
