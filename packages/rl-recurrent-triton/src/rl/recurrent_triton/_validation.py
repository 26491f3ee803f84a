"""Argument checks: kernels trust shapes and dtypes, so all are checked before a launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from rl.core import RecurrentOptions
from rl.core.errors import ArgumentError, BackendError, ShapeError

OWNER = "the recurrent back end 'triton'"

_PRECISIONS = (None, "ieee", "tf32", "tf32x3")
_RECOMPUTES = ("none", "full")
_functorch: Any = torch._C._functorch  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


def check_options(options: RecurrentOptions) -> None:
    """Check the options of a call.

    Args:
        options: Options of a call.

    Raises:
        BackendError: if one is unknown; the message lists those that are known.
    """
    for name, value, known in (
        ("matmul_precision", options.matmul_precision, _PRECISIONS),
        ("recompute", options.recompute, _RECOMPUTES),
    ):
        if value not in known:
            raise BackendError(f"{OWNER}: {name} is {value!r}; it is one of {', '.join(map(repr, known))}")


def check_arguments(
    cell: str,
    inputs: Tensor,
    weights: Sequence[Tensor],
    each: int,
    state: tuple[Tensor, ...],
    is_init: Tensor,
    resets: tuple[Tensor, ...] | None,
) -> None:
    """Check that tensors fit together; see `rl.core.interfaces.RecurrentBackend` for shapes.

    Args:
        cell: Cell, ``"lstm"`` or ``"gru"``.
        inputs: Inputs, ``[B, T, I]``.
        weights: Weights by layer.
        each: Weights of a layer.
        state: State before the first step.
        is_init: Mask of the resets.
        resets: Stored states of the resets.

    Raises:
        ShapeError: if shapes do not agree.
        ArgumentError: if an argument is not a tensor, the mask is not bool, or states are integers.
    """
    layers, hidden = len(weights) // each, weights[1].shape[-1]
    _require_tensors(cell, inputs, state, is_init, resets)
    if inputs.ndim != 3:
        _misfit("inputs", "[B, T, I]", inputs, "sequences of one batch dimension, batch first")
    batch, time, width = inputs.shape
    if width != weights[0].shape[-1]:
        _misfit("inputs", f"[B, T, I] with I = {weights[0].shape[-1]} of weight_ih_l0", inputs, "of another module?")
    _require_weights(4 if cell == "lstm" else 3, weights, each)
    for number, part in enumerate(state):
        if part.shape != (batch, layers, hidden):
            _misfit(f"state {number}", f"[B, layers, H] = {[batch, layers, hidden]}", part, "batch first")
    if is_init.shape != (batch, time):
        _misfit("is_init", f"[B, T] = {[batch, time]}", is_init, "squeeze its last dimension, if it has one of size 1")
    for number, part in enumerate(resets or ()):
        if part.shape != (batch, time, layers, hidden):
            _misfit(f"reset_state {number}", f"[B, T, layers, H] = {[batch, time, layers, hidden]}", part, "expand it")


def _require_weights(slots: int, weights: Sequence[Tensor], each: int) -> None:
    """Check that the shapes of all weights follow from ``weight_hh_l0`` and the width of the inputs."""
    width, hidden = weights[0].shape[-1], weights[1].shape[-1]
    for place in range(len(weights) // each):
        below, rows = hidden if place else width, slots * hidden
        expected = [(rows, below), (rows, hidden), (rows,), (rows,)]
        names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
        for name, shape, weight in zip(names, expected, weights[each * place : each * (place + 1)], strict=False):
            if weight.shape != shape:
                _misfit(f"{name}_l{place}", f"{list(shape)}", weight, f"weight_hh_l0 has {hidden} columns")


def _require_tensors(cell: str, inputs: object, state: object, is_init: object, resets: object) -> None:
    parts = 2 if cell == "lstm" else 1
    for name, found in (("state", state), ("reset_state", resets)):
        if name == "reset_state" and (found is None or found == ()):
            continue
        inside = cast("tuple[object, ...]", found)
        sequence = isinstance(found, (tuple, list))
        if not sequence or len(inside) != parts or not all(isinstance(part, Tensor) for part in inside):
            said = f"{type(found).__name__} of {len(inside)}" if sequence else _describe(found)
            what = "h and c" if parts == 2 else "h"
            raise ArgumentError(f"{OWNER}: {name} of {cell} is a tuple of {parts} tensors ({what}), got {said}")
        for number, part in enumerate(cast("tuple[Tensor, ...]", found)):
            if not part.is_floating_point():
                raise ArgumentError(f"{OWNER}: {name} {number} is {part.dtype}, expected a floating type: convert it")
    for name, found in (("inputs", inputs), ("is_init", is_init)):
        if not isinstance(found, Tensor):
            raise ArgumentError(f"{OWNER}: {name} is a tensor, got {_describe(found)}")
        if found.is_nested or found.layout is not torch.strided:
            kind = "nested" if found.is_nested else str(found.layout)
            raise ArgumentError(f"{OWNER}: {name} is {kind}, expected a dense tensor: pad it, or use .to_dense()")
    if cast("Tensor", is_init).dtype is not torch.bool:
        raise ArgumentError(f"{OWNER}: is_init is {cast('Tensor', is_init).dtype}, expected torch.bool: use .bool()")


def _describe(found: object) -> str:
    return "None" if found is None else f"a {type(found).__name__}"


def _misfit(name: str, expected: str, found: Tensor, hint: str) -> NoReturn:
    raise ShapeError(f"{OWNER}: {name} has the shape {list(found.shape)}, expected {expected}: {hint}")


def check_plain_tensors(tensors: Sequence[Tensor | None]) -> None:
    """Reject tensors inside of `torch.func` transforms, which kernels cannot see.

    Args:
        tensors: Tensors of a call, or its incoming gradients.

    Raises:
        BackendError: if one is; the message names the alternative.
    """
    for tensor in tensors:
        if tensor is not None and (
            _functorch.is_functorch_wrapped_tensor(tensor) or _functorch.is_legacy_batchedtensor(tensor)
        ):
            raise BackendError(
                f"{OWNER} does not compute inside of torch.func transforms (vmap, grad, jvp, is_grads_batched): call it"
                " once for each, or run the recurrence step by step"
            )
