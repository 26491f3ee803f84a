"""The recurrence alone, in each launch shape: time of a step, in a stream and in a CUDA graph; and how exact it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from recurrent_gpu import Place, interleave
from recurrent_sides import Problem, Size
from torch import Tensor

from rl.core import RecurrentOptions
from rl.recurrent_triton import TritonBackend
from rl.testing import recurrent_reference

MODES: dict[str, tuple[torch.dtype, str]] = {
    "tf32": (torch.float32, "tf32"),
    "tf32x3": (torch.float32, "tf32x3"),
    "ieee": (torch.float32, "ieee"),
    "bfloat16": (torch.bfloat16, "ieee"),
}


def forward_and_backward(
    place: Place, size: Size, mode: str, shape: str | None
) -> tuple[Callable[[], None], Callable[[], None]]:
    """The kernels of one layer in a launch shape, that of the plan if None, on numbers of their own."""
    from rl.recurrent_triton import _launch

    dtype, precision = MODES[mode]
    launch: Any = _launch
    batch, steps, hidden = size.batch, size.time, size.hidden
    slots = 4 if size.cell == "lstm" else 3

    def made(*of: int, kind: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(of, device=place.device).to(kind) / 4

    gates = made(batch, steps, 4 * hidden, kind=dtype)
    weight = made(slots * hidden, hidden, kind=dtype)
    h0, c0, in_h, in_c = (made(batch, hidden) for _ in range(4))
    h, c, grad_h = (made(batch, steps, hidden) for _ in range(3))
    grad_gates = torch.empty_like(gates)
    mask = torch.rand(batch, steps, device=place.device) < (1 / size.episode if size.episode else 0.0)
    every = (0, steps)

    def forward() -> None:
        if size.cell == "lstm":
            launch.lstm_forward(
                gates, weight, h0, c0, mask, None, None, h, c, every, keep=True, precision=precision, launch=shape
            )
        else:
            launch.gru_forward(
                gates, weight, None, h0, mask, None, h, every, keep=True, precision=precision, launch=shape
            )

    def backward() -> None:
        how: dict[str, Any] = {"activated": True, "precision": precision, "launch": shape}
        if size.cell == "lstm":
            rest = (grad_h, None, in_h, in_c, grad_gates, None, every)
            launch.lstm_backward(gates, weight, c0, mask, None, c, *rest, **how)
        else:
            launch.gru_backward(gates, weight, h0, mask, None, h, grad_h, in_h, grad_gates, None, every, **how)

    return forward, backward


def shapes(
    place: Place, sizes: list[Size], modes: list[str], *, rounds: int, seconds: float, stop: Callable[[], bool]
) -> Iterator[str]:
    """A line for each size, precision and launch shape: what the plan takes first, then the others, until `stop`."""
    from rl.recurrent_triton._plan import SHAPES

    yield "microseconds of a step, forward / backward, in a stream (in a CUDA graph); * is what the plan takes"
    order = [(size, mode, None) for mode in modes for size in sizes]
    order += [(size, mode, shape) for size in sizes for mode in modes for shape in SHAPES]
    for done, (size, mode, shape) in enumerate(order):
        if stop():
            yield f"left out for lack of time: {len(order) - done} of {len(order)} lines"
            return
        yield f"{size} {mode:9} {shape or '*':9}{_times(place, size, mode, shape, rounds, seconds)}"
        place.forget()


def _times(place: Place, size: Size, mode: str, shape: str | None, rounds: int, seconds: float) -> str:
    try:
        calls = dict(zip(("forward", "backward"), forward_and_backward(place, size, mode, shape), strict=True))
        start = time.perf_counter()
        for call in calls.values():
            call()
        place.synchronize()
        first = time.perf_counter() - start
        graphs = {f"{name} in a graph": place.captured(call) for name, call in calls.items()}
        calls |= {name: replay for name, replay in graphs.items() if replay is not None}
        times = {
            name: 1e3 * ms / size.time for name, ms in interleave(place, calls, rounds=rounds, seconds=seconds).items()
        }
    except Exception as problem:  # noqa: BLE001  a shape that does not fit here is a result, too
        return f"left out: {type(problem).__name__}: {str(problem).splitlines()[0][:90] if str(problem) else ''}"
    found = f"{times['forward']:7.2f} / {times['backward']:7.2f}"
    if len(times) > 2:
        found += f"   ({times['forward in a graph']:7.2f} / {times['backward in a graph']:7.2f})"
    return f"{found}   first call {first:.1f} s"


def precisions(place: Place, sizes: list[Size], modes: list[str]) -> Iterator[str]:
    """Errors against float64, of the outputs and of the gradient of the recurrent weight."""
    yield "largest error against float64, in units of the largest number: outputs, gradient of the recurrent weight"
    for size in sizes:
        problem = Problem(size, place.device, torch.float32)
        exact = _outcome(_wide(problem), None, recurrent_reference)
        for mode in modes:
            dtype, precision = MODES[mode]
            compute = dtype if dtype is not torch.float32 else None
            options = RecurrentOptions(compute_dtype=compute, matmul_precision=precision)  # pyright: ignore[reportArgumentType]
            found = _outcome(problem, options, TritonBackend())
            errors = [
                ((got.double() - want).abs().max() / want.abs().max()).item()
                for got, want in zip(found, exact, strict=True)
            ]
            yield f"{size} {mode:9} {errors[0]:.1e} {errors[1]:.1e}"
        place.forget()


def _wide(problem: Problem) -> Problem:
    wide = Problem(problem.size, problem.x.device, torch.float64)
    wide.layer.load_state_dict(problem.layer.state_dict())
    wide.x, wide.grad, wide.is_init = problem.x.detach().double(), problem.grad.double(), problem.is_init
    return wide


def _outcome(problem: Problem, options: RecurrentOptions | None, run: Any) -> tuple[Tensor, Tensor]:
    rest = () if options is None else (None, options)
    out, _ = run(problem.layer, problem.x, problem.state, problem.is_init, *rest)
    (grad,) = torch.autograd.grad(out, problem.layer.weight_hh_l0, problem.grad)
    return out.detach(), grad
