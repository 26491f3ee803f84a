"""The Triton twin: the same tree without a compiled library, compiled by Triton at first use."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, final

import torch
import triton
from torch import Tensor

from rl.core.errors import SpecError
from rl.prio_cuda import _triton_kernels
from rl.prio_cuda._executor import DTYPES
from rl.prio_cuda._layout import MAGIC, Layout, layout
from rl.prio_cuda._platform import PLATFORMS

__all__ = ["TritonExecutor", "interpreted"]

kernels: Any = _triton_kernels  # Triton gives them other types than they are called with

_OPTIONS: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False}  # fused, it would round otherwise than in C
_ALONE = 512
_ALONE_OPTIONS: dict[str, Any] = {"num_warps": 16, "enable_fp_fusion": False}
_FEW = 4 * _ALONE  # children of a level that one program makes faster than another launch


def interpreted() -> bool:
    """Whether Triton interprets, so that tensors on the CPU will do."""
    return not isinstance(kernels.sample, triton.JITFunction)


_Q = 1024 if interpreted() else 128  # lanes of a program; the interpreter takes as long for many as for few


def _bits(value: float) -> int:
    return struct.unpack("<q", struct.pack("<d", value))[0]


def _guard_of(device: torch.device) -> Callable[[torch.device], Any]:
    if device.type == "cuda":
        return PLATFORMS["cuda"].guard
    if device.type == "cpu" and interpreted():
        return lambda _: nullcontext()
    raise SpecError(f"TritonPriorityTree lives on a CUDA device, not on {device}")


def _guard(device: torch.device) -> Any:
    return _guard_of(device)(device)


@final
class TritonExecutor:
    """Triton kernels, on the current stream of the buffer's device."""

    def ready(self, device: torch.device) -> None:
        _guard_of(device)
        if device.type == "cuda":
            PLATFORMS["cuda"].ready()

    def workspace(self, capacity: int, bits: int, device: torch.device) -> Tensor:
        with _guard(device):
            plan = layout(capacity, bits)
            work = torch.zeros(kernels.STAMPS + 4 * capacity, dtype=torch.uint8, device=device)
            words = torch.zeros(32, dtype=torch.int64)
            words[: len(plan.at)] = torch.tensor(plan.at)
            words[16 : 16 + len(plan.at)] = torch.tensor(plan.children)
            work[kernels.PLAN : kernels.STAMPS].copy_(words.view(torch.uint8))
            return work

    def init(self, buffer: Tensor, capacity: int, bits: int) -> None:
        with _guard(buffer.device):
            head = struct.pack("<8sqq3d", MAGIC, capacity, bits, 0.0, float("inf"), 0.0)
            buffer[: len(head)].copy_(torch.frombuffer(bytearray(head), dtype=torch.uint8))

    def set(
        self, buffer: Tensor, work: Tensor, capacity: int, bits: int, index: Tensor, priority: Tensor, rows: int
    ) -> None:
        self._write(buffer, work, layout(capacity, bits), index, priority, rows, errors=None, raw=None, largest=None)

    def set_errors(  # noqa: PLR0913, PLR0917  as in C
        self,
        buffer: Tensor,
        work: Tensor,
        capacity: int,
        bits: int,
        index: Tensor,
        error: Tensor,
        eps: float,
        alpha: float,
        raw: Tensor | None,
        largest: Tensor | None,
        rows: int,
    ) -> None:
        self._write(
            buffer, work, layout(capacity, bits), index, error, rows, errors=(eps, alpha), raw=raw, largest=largest
        )

    def _write(
        self,
        buffer: Tensor,
        work: Tensor,
        plan: Layout,
        index: Tensor,
        value: Tensor,
        rows: int,
        *,
        errors: tuple[float, float] | None,
        raw: Tensor | None,
        largest: Tensor | None,
    ) -> None:
        n, step, wide = index.numel(), 1 if value.ndim else 0, plan.bits == 64
        if not n:
            return
        eps, alpha = map(_bits, errors or (0.0, 1.0))
        grid = (triton.cdiv(n, _Q),)
        common: dict[str, Any] = {"FROM_ERRORS": errors is not None, "WIDE": wide, "Q": _Q, **_OPTIONS}
        with _guard(buffer.device):
            kernels.elect[grid](work, index, value, n, step, rows, eps, alpha, **common)
            kernels.write[grid](
                buffer,
                work,
                index,
                value,
                value if raw is None else raw,
                value if largest is None else largest,
                plan.leaves,
                n,
                step,
                rows,
                eps,
                alpha,
                RAW=raw is not None,
                LARGEST=largest is not None,
                **common,
            )
            self._climb(buffer, work, plan, index, value, n, step)

    def _climb(
        self, buffer: Tensor, work: Tensor, plan: Layout, index: Tensor, value: Tensor, n: int, step: int
    ) -> None:
        """Make all levels again: those with much to do by many programs, the rest by one."""
        wide, first = plan.bits == 64, 0
        most = plan.reach(n)
        for height, children in enumerate(plan.children):
            full = most >= children
            count = children if full else n
            if count <= _FEW:
                break
            grid = (triton.cdiv(count, _Q),)
            kernels.level[grid](
                buffer,
                work,
                index,
                plan.leaves,
                count,
                height,
                BOTTOM=height == 0,
                FULL=full,
                WIDE=wide,
                Q=_Q,
                **_OPTIONS,
            )
            first = height + 1
        kernels.above[(1,)](
            buffer,
            work,
            index,
            value,
            plan.leaves,
            n,
            most,
            step,
            max(first, 1),
            len(plan.at),
            BOTTOM=first == 0,
            WIDE=wide,
            Q=_ALONE,
            **_ALONE_OPTIONS,
        )

    def sample(
        self,
        buffer: Tensor,
        work: Tensor,
        capacity: int,
        bits: int,
        u: Tensor,
        stratified: bool,  # noqa: FBT001  as in C
        beta: float | None,
    ) -> tuple[Tensor, Tensor]:
        plan, n = layout(capacity, bits), u.numel()
        index = torch.empty(u.shape, dtype=torch.int64, device=u.device)
        found = torch.empty(u.shape, dtype=DTYPES[bits], device=u.device)
        if n:
            with _guard(buffer.device):
                kernels.sample[(triton.cdiv(n, _Q),)](
                    buffer,
                    work,
                    u,
                    index,
                    found,
                    plan.leaves,
                    n,
                    len(plan.at),
                    _bits(beta or 0.0),
                    STRATIFIED=stratified,
                    WEIGHTED=beta is not None,
                    WIDE=bits == 64,
                    Q=_Q,
                    **_OPTIONS,
                )
        return index, found

    def get(self, buffer: Tensor, work: Tensor, capacity: int, bits: int, index: Tensor) -> Tensor:
        out, n = torch.empty(index.shape, dtype=DTYPES[bits], device=index.device), index.numel()
        if n:
            with _guard(buffer.device):
                kernels.get[(triton.cdiv(n, _Q),)](
                    buffer,
                    work,
                    index,
                    out,
                    layout(capacity, bits).leaves,
                    n,
                    capacity,
                    WIDE=bits == 64,
                    Q=_Q,
                    **_OPTIONS,
                )
        return out

    def rebuild(self, buffer: Tensor, work: Tensor, capacity: int, bits: int) -> None:
        plan = layout(capacity, bits)
        leaves = buffer[plan.leaves :].view(DTYPES[bits])
        with _guard(buffer.device):
            kernels.check_leaves[(triton.cdiv(plan.padded, _Q),)](
                buffer, work, plan.leaves, capacity, plan.padded, WIDE=bits == 64, Q=_Q, **_OPTIONS
            )
            # Whole levels: no index is read.
            self._climb(buffer, work, plan, buffer.view(torch.int64), leaves, plan.children[0], 1)
