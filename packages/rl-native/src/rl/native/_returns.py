"""Calls of `csrc/returns.c`: tensors of one shape as addresses and strides, packed the way that `returns.h` says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import prod
from struct import Struct

import torch
from torch import Tensor

from rl.core.errors import ShapeError, SpecError
from rl.native._library import require

__all__ = [
    "BITS",
    "GAE",
    "OUT",
    "PLAIN",
    "TD_LAMBDA",
    "VTRACE",
    "Slots",
    "dimension",
    "is_without_memory",
    "refuse_out",
    "run",
    "run_forward",
]

PLAIN, GAE, TD_LAMBDA, VTRACE = range(4)

Slots = tuple[
    Tensor,  # reward, or d
    Tensor | None,  # value
    Tensor | None,  # next value
    Tensor | None,  # importance ratio
    Tensor | None,  # log_pi, where there is no ratio
    Tensor | None,  # log_mu
    Tensor | None,  # gamma by step, or c
    Tensor | None,  # lambda by step
    Tensor | None,  # done
    Tensor | None,  # terminated
    Tensor,  # out
    Tensor | None,  # second out
]
"""Tensors in the order of ``rl_returns_slot``."""

OUT = 10
BITS = {torch.float32: 32, torch.float64: 64}

_HEAD = Struct("=6q4d12q")
_STRIDES = Struct("=36q")
_pack_head = _HEAD.pack
_REFUSED = "rl_returns refused a job: the library of rl-native is older than its Python part; build it anew"


@cache
def _entry() -> Callable[[bytes], int]:
    from ctypes import c_char_p, c_int32

    function = require().rl_returns
    function.argtypes, function.restype = [c_char_p], c_int32
    return function


def dimension(time_dim: int, shape: torch.Size) -> int:
    """`time_dim`, counted from the front.

    Raises:
        ShapeError: if a tensor of `shape` does not have it.
    """
    dims = len(shape)
    if 0 <= time_dim < dims:
        return time_dim
    if not -dims <= time_dim < 0:
        raise ShapeError(f"time_dim is {time_dim}, which a tensor of shape {tuple(shape)} does not have")
    return time_dim + dims


def run(
    kind: int,
    tensors: Slots,
    dim: int,
    gamma: float = 0.0,
    lmbda: float = 0.0,
    rho_bar: float = 0.0,
    c_bar: float = 0.0,
) -> None:
    """Fill the outputs of a job.

    Args:
        kind: of ``rl_returns_kind``.
        tensors: of one shape, on the CPU, in the order of ``rl_returns_slot``; numbers of the type of the first,
            flags bool. The outputs overlap nothing.
        dim: where time is, counted from the front.
        gamma: used where there is no tensor of them.
        lmbda: likewise.
        rho_bar: largest weight of a temporal difference, of V-trace.
        c_bar: largest weight of what follows, of V-trace.
    """
    shape = tensors[0].shape
    outer, steps, inner = prod(shape[:dim]), shape[dim], prod(shape[dim + 1 :])
    if not outer * steps * inner:
        return
    bits = BITS[tensors[0].dtype]
    seen = [None if tensor is None else _Seen(tensor, dim, written=slot >= OUT) for slot, tensor in enumerate(tensors)]
    addresses = [0 if s is None else s.tensor.data_ptr() for s in seen]
    strides = [step for s in seen for step in ((0, 0, 0) if s is None else s.strides)]
    head = _pack_head(kind, bits, outer, steps, inner, 1, gamma, lmbda, rho_bar, c_bar, *addresses)
    _call(head + _STRIDES.pack(*strides))
    for s in seen:
        if s is not None:
            s.give_back()


def run_forward(d: Tensor, c: Tensor, out: Tensor, dim: int) -> None:
    """``y_t = d_t + c_{t-1} * y_{t-1}``: the recurrence in the other direction of time, by strides that go back.

    Args:
        d: on the CPU.
        c: same shape and type; its last step is not read.
        out: likewise; overlaps neither.
        dim: where time is, counted from the front.
    """
    shape = d.shape
    outer, steps, inner = prod(shape[:dim]), shape[dim], prod(shape[dim + 1 :])
    if not outer * steps * inner:
        return
    seen = [_Seen(d, dim, written=False), _Seen(c, dim, written=False), _Seen(out, dim, written=True)]
    # What stands before step t is the weight of t - 1; the first step has none, and the kernel does not ask for it.
    starts = (steps - 1, max(steps - 2, 0), steps - 1)
    addresses, strides = [0] * 12, [0] * 36
    for slot, s, start in zip((0, 6, OUT), seen, starts, strict=True):
        before, time, behind = s.strides
        addresses[slot] = s.tensor.data_ptr() + start * time * d.element_size()
        strides[3 * slot : 3 * slot + 3] = before, -time, behind
    head = _pack_head(PLAIN, BITS[d.dtype], outer, steps, inner, 1, 0.0, 0.0, 0.0, 0.0, *addresses)
    _call(head + _STRIDES.pack(*strides))
    seen[-1].give_back()


def _call(job: bytes) -> None:
    if _entry()(job):
        raise SpecError(_REFUSED)


class _Seen:
    """A tensor as ``[outer, time, inner]`` with strides, or a dense copy where it cannot be seen like that."""

    def __init__(self, tensor: Tensor, dim: int, *, written: bool) -> None:
        if is_without_memory(tensor):
            raise SpecError(f"a tensor of shape {tuple(tensor.shape)} has no memory: its storage was given back")
        self._target = tensor if written else None
        if tensor.is_neg():
            tensor = tensor.resolve_neg()
        strides = self._strides_of(tensor, dim)
        if strides is None:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
            strides = self._strides_of(tensor, dim)
            assert strides is not None
        self.tensor, self.strides = tensor, strides

    @staticmethod
    def _strides_of(tensor: Tensor, dim: int) -> tuple[int, ...] | None:
        sizes, strides = tensor.shape, tensor.stride()
        if dim == 1 and len(strides) == 3:
            return strides
        before, behind = _merged(sizes[:dim], strides[:dim]), _merged(sizes[dim + 1 :], strides[dim + 1 :])
        return None if before is None or behind is None else (before, strides[dim], behind)

    def give_back(self) -> None:
        """Write what was computed in a copy to where it belongs."""
        if self._target is not None and self._target is not self.tensor:
            self._target.copy_(self.tensor)


def _merged(sizes: Sequence[int], strides: Sequence[int]) -> int | None:
    """The stride of dimensions counted as one; None if they cannot be."""
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


def is_without_memory(tensor: Tensor) -> bool:
    """Whether there are no elements in memory: storage was given back, or zeros are kept in mind only, by autograd."""
    return tensor.layout is not torch.strided or (not tensor.data_ptr() and tensor.numel() > 0)


def refuse_out(out: Sequence[Tensor], inputs: Sequence[Tensor | None], like: Tensor) -> None:
    """Refuse outputs that do not fit, or whose memory something else needs.

    Args:
        out: what would be written.
        inputs: what is read meanwhile.
        like: has the shape and type that they are to have.

    Raises:
        ShapeError: if a shape differs.
        SpecError: if a type or device differs, a gradient is asked for, or memory is shared.
    """
    spans = [_span(tensor) for tensor in inputs if tensor is not None]
    for tensor in out:
        if tensor.shape != like.shape:
            raise ShapeError(f"out has shape {tuple(tensor.shape)}; it must have {tuple(like.shape)}, as the inputs do")
        if tensor.dtype != like.dtype or not tensor.is_cpu:
            raise SpecError(f"out is {tensor.dtype} on {tensor.device}; it must be {like.dtype} on the CPU")
        if is_without_memory(tensor):
            raise SpecError("out has no memory: its storage was given back")
        if tensor.requires_grad:
            raise SpecError("out requires a gradient, which writing in place would lose; detach it")
        if not tensor.is_contiguous() and any(step == 0 < size - 1 for size, step in _axes(tensor)):
            raise SpecError("several elements of out share memory; give it memory of its own")
        first, last = span = _span(tensor)
        if any(first < end and start < last for start, end in spans):
            raise SpecError("out overlaps an input or the other out; give it memory of its own")
        spans.append(span)


def _axes(tensor: Tensor) -> Iterable[tuple[int, int]]:
    return zip(tensor.shape, tensor.stride(), strict=True)


def _span(tensor: Tensor) -> tuple[int, int]:
    """First address, and the one behind the last."""
    start, elements = tensor.data_ptr(), tensor.numel()
    if elements and not tensor.is_contiguous():
        elements = sum((size - 1) * step for size, step in _axes(tensor)) + 1
    return start, start + elements * tensor.element_size()
