"""Time loops of LSTM and GRU layers in C, as the back end ``scan`` of rl-modules calls them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from struct import Struct
from threading import Thread
from typing import final

import torch
from torch import Tensor

from rl.core.errors import ArgumentError, ShapeError
from rl.core.interfaces import RecurrentKernels, RecurrentResets
from rl.native._library import library, require, why

BITS = {torch.float32: 32, torch.float64: 64}
LSTM_FORWARD, LSTM_BACKWARD, GRU_FORWARD, GRU_BACKWARD = range(4)

_JOB = Struct("=27q")
_BAD_RESETS = 2
_WORTH_A_THREAD = 20_000_000
"""Multiplications of one call below which threads do not pay."""


@cache
def _functions() -> tuple[
    Callable[[int, int, int], int], Callable[[bytes], int], Callable[[bytes], int], Callable[[], int]
]:
    from ctypes import c_char_p, c_int32, c_int64

    found = require()
    room, prepare, run = found.rl_recurrent_room, found.rl_recurrent_prepare, found.rl_recurrent_run
    room.argtypes, room.restype = [c_int64, c_int64, c_int64], c_int64
    for function in (prepare, run):
        function.argtypes, function.restype = [c_char_p], c_int32
    return room, prepare, run, found.rl_isa


@final
class NativeKernels(RecurrentKernels):
    """Loops over time of one LSTM or GRU layer in C, forward and backward, for float32 and float64 on the CPU.

    One call computes the products with the recurrent weights, activations and resets of all steps, with the GIL
    released. Large batches are split between as many threads as torch uses; the result of a row depends on neither the
    threads nor the other rows. See `rl.core.interfaces.RecurrentKernels`.

    Example:
        >>> kernels = NativeKernels()
        >>> gates, weight, first = torch.zeros(5, 2, 12), torch.zeros(12, 3), torch.ones(2, 3)
        >>> h, c = torch.empty(5, 2, 3), torch.empty(5, 2, 3)
        >>> kernels.lstm_forward(gates, weight, first, first, None, h, c)
        >>> c[:, 0, 0]
        tensor([0.5000, 0.2500, 0.1250, 0.0625, 0.0312])
    """

    name = "native"

    def __init__(self) -> None:
        self.why = why()

    def serves(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Return whether the loops support a dtype and device."""
        return device.type == "cpu" and dtype in BITS and library() is not None

    def lstm_forward(
        self,
        gates: Tensor,
        weight: Tensor,
        h0: Tensor,
        c0: Tensor,
        resets: RecurrentResets | None,
        h: Tensor,
        c: Tensor,
    ) -> None:
        """Compute the states of an LSTM layer after each step; see `RecurrentKernels.lstm_forward`.

        Raises:
            ShapeError: If a shape differs.
            ArgumentError: If a type differs, a tensor is not contiguous or not on the CPU, or resets are out of order.
        """
        job = _Job(LSTM_FORWARD, gates, weight, resets)
        job.add("h0", h0, 2)
        job.add("c0", c0, 2)
        job.add("h", h)
        job.add("c", c)
        job.run()

    def lstm_backward(  # noqa: PLR0913, PLR0917  one buffer each
        self,
        gates: Tensor,
        weight: Tensor,
        c0: Tensor,
        c: Tensor,
        resets: RecurrentResets | None,
        grad_h: Tensor,
        grad_c: Tensor | None,
        grad_gates: Tensor,
        grad_h0: Tensor,
        grad_c0: Tensor,
        grad_reset_h: Tensor | None,
        grad_reset_c: Tensor | None,
    ) -> None:
        """Compute the gradients of `lstm_forward`; see `RecurrentKernels.lstm_backward`.

        Raises:
            ShapeError: If a shape differs.
            ArgumentError: If a type differs, a tensor is not contiguous or not on the CPU, or resets are out of order.
        """
        job = _Job(LSTM_BACKWARD, gates, weight, resets)
        job.add("c0", c0, 2)
        job.add("c", c)
        job.add("grad_h", grad_h)
        job.add("grad_c", grad_c, optional=True)
        job.add_gradients(grad_gates, grad_h0, grad_reset_h)
        job.add("grad_c0", grad_c0, 2)
        job.add("grad_reset_c", grad_reset_c, 1, optional=True)
        job.run()

    def gru_forward(self, gates: Tensor, weight: Tensor, h0: Tensor, resets: RecurrentResets | None, h: Tensor) -> None:
        """Compute the states of a GRU layer after each step; see `RecurrentKernels.gru_forward`.

        Raises:
            ShapeError: If a shape differs.
            ArgumentError: If a type differs, a tensor is not contiguous or not on the CPU, or resets are out of order.
        """
        job = _Job(GRU_FORWARD, gates, weight, resets)
        job.add("h0", h0, 2)
        job.add("h", h)
        job.run()

    def gru_backward(
        self,
        gates: Tensor,
        weight: Tensor,
        h0: Tensor,
        h: Tensor,
        resets: RecurrentResets | None,
        grad_h: Tensor,
        grad_gates: Tensor,
        grad_h0: Tensor,
        grad_reset_h: Tensor | None,
    ) -> None:
        """Compute the gradients of `gru_forward`; see `RecurrentKernels.gru_backward`.

        Raises:
            ShapeError: If a shape differs.
            ArgumentError: If a type differs, a tensor is not contiguous or not on the CPU, or resets are out of order.
        """
        job = _Job(GRU_BACKWARD, gates, weight, resets)
        job.add("h0", h0, 2)
        job.add("h", h)
        job.add("grad_h", grad_h)
        job.add_gradients(grad_gates, grad_h0, grad_reset_h)
        job.run()


_FIELDS = (
    *("gates", "weight", "h0", "c0", "h", "c", "resets", "reset_starts", "reset_rows", "reset_h", "reset_c"),
    *("grad_h", "grad_c", "grad_gates", "grad_h0", "grad_c0", "grad_reset_h", "grad_reset_c"),
)
"""Fields of ``rl_recurrent_job`` after the sizes."""
_PLACES = {name: place for place, name in enumerate(_FIELDS)}


class _Job:
    """Arguments of one call: every tensor is checked before the call, since C trusts the addresses."""

    def __init__(self, kind: int, gates: Tensor, weight: Tensor, resets: RecurrentResets | None) -> None:
        if not isinstance(gates, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance] - C trusts what this checks
            raise ArgumentError(f"gates is a {type(gates).__name__}; it must be a tensor")
        if gates.ndim != 3 or gates.shape[2] % 4:
            raise ShapeError(f"gates has the shape {tuple(gates.shape)}; it must be [steps, rows, 4 * hidden]")
        steps, rows, four = gates.shape
        hidden = four // 4
        slots = 4 if kind in (LSTM_FORWARD, LSTM_BACKWARD) else 3
        if gates.dtype not in BITS:
            raise ArgumentError(f"gates is {gates.dtype}; recurrent loops in C are for torch.float32 and torch.float64")
        self._kind, self._dtype, self._sizes = kind, gates.dtype, (steps, rows, hidden)
        self._resets = 0 if resets is None else len(resets.rows)
        self._shapes = ((self._resets, hidden), (rows, hidden), (steps, rows, hidden))
        self._addresses = [0] * len(_PLACES)
        self._kept: list[object] = []
        self._add("gates", gates, gates.shape)
        self._add("weight", weight, (slots * hidden, hidden))
        if resets is not None:
            self._add_resets(resets)

    def add(self, name: str, tensor: Tensor | None, dims: int = 3, *, optional: bool = False) -> None:
        """Check a tensor of states and store its address: 3 dimensions for steps, 2 for rows, 1 for resets."""
        if tensor is not None or not optional:
            self._add(name, tensor, self._shapes[dims - 1])

    def add_gradients(self, grad_gates: Tensor, grad_h0: Tensor, grad_reset_h: Tensor | None) -> None:
        self._add("grad_gates", grad_gates, (*self._sizes[:2], 4 * self._sizes[2]))
        if self._addresses[_PLACES["grad_gates"]] == self._addresses[_PLACES["gates"]] and grad_gates.numel():
            raise ArgumentError("grad_gates and gates are one memory; give the gradients memory of their own")
        self.add("grad_h0", grad_h0, 2)
        self.add("grad_reset_h", grad_reset_h, 1, optional=True)

    def _add(self, name: str, tensor: Tensor | None, shape: Iterable[int]) -> None:
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"{name} is a {type(tensor).__name__}; it must be a tensor")
        if tensor.shape != (expected := tuple(shape)):
            raise ShapeError(f"{name} has the shape {tuple(tensor.shape)}; it must be {expected}, as gates is")
        if tensor.dtype is not self._dtype or not tensor.is_cpu:
            raise ArgumentError(
                f"{name} is {tensor.dtype} on {tensor.device}; it must be {self._dtype} on the CPU, as gates"
            )
        if not tensor.is_contiguous() or tensor.is_neg():
            raise ArgumentError(f"{name} is not contiguous (strides {tensor.stride()}); call contiguous()")
        self._addresses[_PLACES[name]] = address = tensor.data_ptr()
        if not address and tensor.numel():
            raise ArgumentError(f"{name} has no memory: its storage was freed")

    def _add_resets(self, resets: RecurrentResets) -> None:
        steps, _, hidden = self._sizes
        rows, count = resets.rows, self._resets
        if len(resets.starts) != steps + 1:
            raise ShapeError(
                f"resets.starts has {len(resets.starts)} entries; it must have {steps + 1}, one per step and 1"
            )
        if rows.dtype is not torch.int64 or rows.ndim != 1 or not rows.is_cpu or (count and not rows.data_ptr()):
            raise ArgumentError(
                f"resets.rows is {rows.dtype} of {rows.ndim} dimensions; it must be torch.int64 [n] on the CPU,"
                " with memory"
            )
        states = {"reset_h": resets.h}
        if self._kind in (LSTM_FORWARD, LSTM_BACKWARD):
            if resets.c is None:
                raise ArgumentError("resets.c is None; an LSTM restarts from states h and c")
            states["reset_c"] = resets.c
        for name, state in states.items():
            dense = state.contiguous()
            self._add(name, dense, (count, hidden))
            self._kept.append(dense)
        starts, dense = array("q", resets.starts), rows.contiguous()
        self._kept += [starts, dense]
        self._addresses[_PLACES["resets"]] = count
        self._addresses[_PLACES["reset_starts"]] = starts.buffer_info()[0]
        self._addresses[_PLACES["reset_rows"]] = dense.data_ptr()

    def run(self) -> None:
        """Run the job.

        Raises:
            ArgumentError: If resets are out of order or their rows out of bounds; nothing is written then.
        """
        room, prepare, run, isa = _functions()
        steps, rows, hidden = self._sizes
        bits, level = BITS[self._dtype], isa()
        scratch = torch.empty(room(bits, rows, hidden) + 64, dtype=torch.uint8)
        aligned = (scratch.data_ptr() + 63) & ~63

        def packed(first: int, end: int) -> bytes:
            return _JOB.pack(self._kind, bits, steps, rows, hidden, first, end, level, aligned, *self._addresses)

        _check_status(prepare(packed(0, rows)))
        threads = min(torch.get_num_threads(), 1 + steps * rows * hidden * hidden * 4 // _WORTH_A_THREAD, rows)
        if threads <= 1:
            _check_status(run(packed(0, rows)))
            return
        ends = [rows * part // threads for part in range(threads + 1)]
        jobs = [packed(first, end) for first, end in pairwise(ends)]
        started: list[Thread] = []
        try:
            for job in jobs[1:]:
                thread = Thread(target=run, args=(job,), name="rl-native-recurrent", daemon=True)
                thread.start()
                started.append(thread)
            run(jobs[0])
        finally:  # the threads use the memory until they end
            for thread in started:
                thread.join()


def _check_status(status: int) -> None:
    if status == _BAD_RESETS:
        raise ArgumentError(
            "resets are out of order: starts must ascend from 0 to the number of rows, and the rows of each step must"
            " ascend and be rows of the batch"
        )
    if status:
        raise ArgumentError(
            "the library rejected a recurrent job: it is older than the Python part of rl-native; rebuild it"
        )
