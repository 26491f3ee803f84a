# ruff: noqa: PLR0913, PLR0917  a recurrence takes one buffer each
"""Running the kernels: the recurrence of one layer over steps ``t0..t1-1``, forward and backward.

Sizes: B rows, T steps, n = t1 - t0 steps of this call, H hidden. "Compute type" is that of products, gates and their
gradients: float32, bfloat16 or float16 (float64 in Triton's interpreter). "State type" is float32 for the half types,
else the compute type. All tensors lie on one device. Nothing here waits for it, or is seen by autograd.

- `gates`, `grad_gates` ``[B, n, 4H]`` (GRU forward without `keep`: ``[B, n, 3H]``), contiguous, compute type.
- `weight_hh` ``[4H, H]`` or ``[3H, H]``, contiguous, compute type, in the order of torch.
- `h0`, `c0`, `incoming...` ``[B, H]``; `h`, `c` ``[B, T, H]``; contiguous, state type.
- `mask` bool ``[B, T]``, any strides: the rows that restart before a step. None if there are none.
- `reset_h`, `reset_c` ``[B, T, H]`` or None (zeros); any floating type, any strides but 1 in the last place. Read only
  where `mask` is set.
- `grad_h`, `grad_c` ``[B, n, H]`` or None (zeros), `grad_reset_c`, `direct` ``[B, n, H]`` or None (not wanted): any
  floating type, any strides but 1 in the last dimension.
- `launch`: a shape ("resident" or "group") or a whole `Launch`; None lets `plan` choose.

States before step t0 are read from `h` and `c` at t0 - 1, or from `h0` and `c0` where t0 is 0.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import gcd
from typing import Any

import torch
import triton
from torch import Tensor

from rl.recurrent_triton._kernels.gru_backward import gru_backward_group, gru_backward_resident
from rl.recurrent_triton._kernels.gru_forward import gru_forward_group, gru_forward_resident
from rl.recurrent_triton._kernels.lstm_backward import lstm_backward_group, lstm_backward_resident
from rl.recurrent_triton._kernels.lstm_forward import lstm_forward_group, lstm_forward_resident
from rl.recurrent_triton._kernels.states import states_before as states_before_kernel
from rl.recurrent_triton._kernels.tiles import COUNTER_STRIDE
from rl.recurrent_triton._plan import Cell, Device, Direction, Launch, Properties, Shape, cdiv, plan

# Triton gives them other types than they are called with.
KERNELS: dict[str, Any] = {
    "lstm_forward_group": lstm_forward_group,
    "lstm_forward_resident": lstm_forward_resident,
    "lstm_backward_group": lstm_backward_group,
    "lstm_backward_resident": lstm_backward_resident,
    "gru_forward_group": gru_forward_group,
    "gru_forward_resident": gru_forward_resident,
    "gru_backward_group": gru_backward_group,
    "gru_backward_resident": gru_backward_resident,
    "states_before": states_before_kernel,
}

Steps = tuple[int, int]
_ROWS, _COLUMNS = 16, 64  # of a program of `states_before`
# One processor, as the interpreter runs one program after the other.
_INTERPRETER = Device(multi_processor_count=1, shared_memory_per_block_optin=96 * 1024)


def is_interpreted() -> bool:
    """Whether Triton interprets, so that tensors on the CPU will do."""
    return not isinstance(KERNELS["states_before"], triton.JITFunction)


@cache
def _properties(device: torch.device) -> Properties:
    return torch.cuda.get_device_properties(device) if device.type == "cuda" else _INTERPRETER


def lstm_forward(
    gates: Tensor,
    weight_hh: Tensor,
    h0: Tensor,
    c0: Tensor,
    mask: Tensor | None,
    reset_h: Tensor | None,
    reset_c: Tensor | None,
    h: Tensor,
    c: Tensor,
    steps: Steps,
    *,
    keep: bool,
    precision: str,
    launch: Launch | Shape | None = None,
) -> None:
    """Write the states after each step to `h` and `c`.

    `gates` come with slots i, f, g, o from inputs and biases. With `keep` they are left activated, else undefined.
    """
    how = _choose("lstm", "forward", h, gates.dtype, precision, launch)
    (*reset_h_at, h_unit), (*reset_c_at, c_unit) = _strides(reset_h), _strides(reset_c)
    tensors = (gates, weight_hh, h0, c0, mask, reset_h, reset_c, h, c)
    units = {"RESET_H_UNIT": h_unit, "RESET_C_UNIT": c_unit, "KEEP": keep}
    strides = (*_strides(mask, scale=1)[:2], *reset_h_at, *reset_c_at)
    _run("lstm_forward", how, tensors, h, gates.shape[1], steps, strides, units, _mode(gates, precision))


def lstm_backward(
    gates: Tensor,
    weight_hh: Tensor,
    c0: Tensor,
    mask: Tensor | None,
    reset_c: Tensor | None,
    c: Tensor,
    grad_h: Tensor | None,
    grad_c: Tensor | None,
    incoming_h: Tensor,
    incoming_c: Tensor,
    grad_gates: Tensor,
    grad_reset_c: Tensor | None,
    steps: Steps,
    *,
    activated: bool,
    precision: str,
    launch: Launch | Shape | None = None,
) -> None:
    """Write the gradients of the sums before the activations to `grad_gates`, which may be `gates`.

    Args:
        gates: Activated gates, or the sums before the activations if not `activated`.
        weight_hh: Argument that the module describes.
        c0: Argument that the module describes.
        mask: Argument that the module describes.
        reset_c: Argument that the module describes.
        c: Cell states of the forward pass.
        grad_h: Gradient of each step's h.
        grad_c: Gradient of each step's c.
        incoming_h: Gradient of the h after step t1 - 1 from later steps; only read.
        incoming_c: Gradient of the c after step t1 - 1 from later steps; afterwards the gradient of the c before step
            t0, 0 in rows that restart there.
        grad_gates: Gradients of the gates before the activations, written.
        grad_reset_c: Gradient of the stored c, written for the steps of this call; 0 where `mask` is not set.
        steps: Argument that the module describes.
        activated: Whether `gates` are activated.
        precision: Argument that the module describes.
        launch: Argument that the module describes.
    """
    how = _choose("lstm", "backward", c, gates.dtype, precision, launch)
    (*reset_c_at, c_unit) = _strides(reset_c)
    (*grad_h_at, grad_h_unit), (*grad_c_at, grad_c_unit) = _strides(grad_h), _strides(grad_c)
    tensors = (gates, weight_hh, c0, mask, reset_c, c, grad_h, grad_c, incoming_h, incoming_c, grad_gates, grad_reset_c)
    units = {"RESET_C_UNIT": c_unit, "GRAD_H_UNIT": grad_h_unit, "GRAD_C_UNIT": grad_c_unit, "ACTIVATED": activated}
    (*grad_reset_at, grad_reset_unit) = _strides(grad_reset_c)
    units["GRAD_RESET_UNIT"] = grad_reset_unit
    strides = (*_strides(mask, scale=1)[:2], *reset_c_at, *grad_h_at, *grad_c_at, *grad_reset_at)
    _run("lstm_backward", how, tensors, c, gates.shape[1], steps, strides, units, _mode(gates, precision))


def gru_forward(
    gates: Tensor,
    weight_hh: Tensor,
    bias_n: Tensor | None,
    h0: Tensor,
    mask: Tensor | None,
    reset_h: Tensor | None,
    h: Tensor,
    steps: Steps,
    *,
    keep: bool,
    precision: str,
    launch: Launch | Shape | None = None,
) -> None:
    """Write the states after each step to `h`.

    `gates` come with slots n (without the recurrent part), r and z from inputs and biases. With `keep` they are left
    activated, and the fourth slot is the recurrent part of n, ``h_before W_hn^T + bias_n``; else undefined.
    """
    how = _choose("gru", "forward", h, gates.dtype, precision, launch)
    (*reset_h_at, h_unit) = _strides(reset_h)
    tensors = (gates, weight_hh, bias_n, h0, mask, reset_h, h)
    units = {"RESET_H_UNIT": h_unit, "KEEP": keep}
    strides = (*_strides(mask, scale=1)[:2], *reset_h_at)
    _run("gru_forward", how, tensors, h, gates.shape[1], steps, strides, units, _mode(gates, precision))


def gru_backward(
    gates: Tensor,
    weight_hh: Tensor,
    h0: Tensor,
    mask: Tensor | None,
    reset_h: Tensor | None,
    h: Tensor,
    grad_h: Tensor | None,
    incoming: Tensor,
    grad_gates: Tensor,
    direct: Tensor | None,
    steps: Steps,
    *,
    activated: bool,
    precision: str,
    launch: Launch | Shape | None = None,
) -> None:
    """Write the gradients of slots n, r, z before the activations, and of m, to `grad_gates`, which may be `gates`.

    Args:
        gates: Slots n, r, z, m, activated; or, if not `activated`, n, r, z before the activations, where n has no
            recurrent part.
        weight_hh: Argument that the module describes.
        h0: Argument that the module describes.
        mask: Argument that the module describes.
        reset_h: Argument that the module describes.
        h: States of the forward pass.
        grad_h: Gradient of each step's h, for the steps of this call.
        incoming: Gradient of the h after step t1 - 1 from later steps; afterwards the direct part (not through the
            gates) of the gradient of the h before step t0, 0 in rows that restart there.
        grad_gates: Gradients of the gates before the activations, written.
        direct: Direct part of the gradient of the stored h, written; 0 where `mask` is not set.
        steps: Argument that the module describes.
        activated: Whether `gates` are activated.
        precision: Argument that the module describes.
        launch: Argument that the module describes.
    """
    how = _choose("gru", "backward", h, gates.dtype, precision, launch)
    (*reset_h_at, h_unit), (*grad_h_at, grad_unit) = _strides(reset_h), _strides(grad_h)
    (*direct_at, direct_unit) = _strides(direct)
    tensors = (gates, weight_hh, h0, mask, reset_h, h, grad_h, incoming, grad_gates, direct)
    units = {"RESET_H_UNIT": h_unit, "GRAD_H_UNIT": grad_unit, "DIRECT_UNIT": direct_unit, "ACTIVATED": activated}
    strides = (*_strides(mask, scale=1)[:2], *reset_h_at, *grad_h_at, *direct_at)
    _run("gru_backward", how, tensors, h, gates.shape[1], steps, strides, units, _mode(gates, precision))


def states_before(
    h0: Tensor, h: Tensor, mask: Tensor | None, reset_h: Tensor | None, out: Tensor, steps: Steps
) -> None:
    """Write the states before each step, resets applied, to `out` ``[B, n, H]``, contiguous, of any type."""
    batch, time, hidden = h.shape
    first, end = steps
    (*reset_h_at, unit) = _strides(reset_h)
    grid = (cdiv(batch * (end - first), _ROWS), cdiv(hidden, _COLUMNS))
    numbers = (batch, time, first, end - first, *_strides(mask, scale=1)[:2], *reset_h_at)
    sizes = {"H": hidden, "BB": _ROWS, "BN": _COLUMNS, "RESET_H_UNIT": unit}
    KERNELS["states_before"][grid](h0, h, mask, reset_h, out, *numbers, **sizes)


def _choose(
    cell: Cell, direction: Direction, state: Tensor, dtype: torch.dtype, precision: str, launch: Launch | Shape | None
) -> Launch:
    if isinstance(launch, Launch):
        return launch
    batch, _, hidden = state.shape
    return _plan_launch(cell, direction, batch, hidden, dtype, precision, state.device, launch)


@lru_cache(maxsize=4096)
def _plan_launch(
    cell: Cell,
    direction: Direction,
    batch: int,
    hidden: int,
    dtype: torch.dtype,
    precision: str,
    device: torch.device,
    shape: Shape | None,
) -> Launch:
    if device.type != "cuda" and shape != "resident" and hidden > 32:
        # One program has all columns: the interpreter runs several one after the other, and they would wait for ever.
        return Launch("group", columns=1 << (hidden - 1).bit_length(), ahead=0)
    return plan(cell, direction, batch, hidden, dtype, precision, _properties(device), shape)


def _mode(gates: Tensor, precision: str) -> str:
    """Return the precision as the kernels take it; only float32 has a choice."""
    return precision if gates.dtype == torch.float32 else "ieee"


def _strides(x: Tensor | None, scale: int | None = None) -> tuple[int, int, int]:
    """Strides along batch and time in units, and the unit: a divisor that tells the compiler how rows are aligned.

    The unit of a contiguous tensor follows from H alone, so that no other batch or length compiles again.
    """
    if x is None:
        return 0, 0, 1
    batch, time = (stride if size > 1 else 0 for size, stride in zip(x.shape[:2], x.stride()[:2], strict=True))
    unit = gcd(batch, time, 16 // x.element_size()) if scale is None else scale
    return batch // unit, time // unit, unit


def _run(
    name: str,
    how: Launch,
    tensors: tuple[Tensor | None, ...],
    state: Tensor,
    span: int,
    steps: Steps,
    strides: tuple[int, ...],
    units: dict[str, Any],
    precision: str,
) -> None:
    """Launch a kernel in the shape that was chosen; see the kernels for the order of arguments."""
    batch, time, hidden = state.shape
    first, end = steps
    tiles, columns = cdiv(batch, how.rows), cdiv(hidden, how.columns)
    sizes = {"H": hidden, "BB": how.rows, "BN": how.columns, **units, "PRECISION": precision}
    options: dict[str, Any] = {"num_warps": how.warps, "num_stages": how.stages, "maxnreg": how.registers}
    numbers = (batch, time, first, span)
    if how.shape == "resident":
        kernel = KERNELS[f"{name}_resident"]
        kernel[tiles,](*tensors, *numbers, first, end, *strides, **sizes, **options)
        return
    sizes["BK"] = how.depth
    sizes["AHEAD"] = how.ahead
    counters = torch.zeros(tiles * COUNTER_STRIDE, dtype=torch.int32, device=state.device)
    kernel = KERNELS[f"{name}_group"]
    options["launch_cooperative_grid"] = True
    for tile in range(0, tiles, how.wave or tiles):
        grid = (min(tiles - tile, how.wave or tiles), columns)
        kernel[grid](counters, tile, *tensors, *numbers, first, end, *strides, **sizes, **options)
