"""Forward and backward passes through all layers and time pieces, for both cells.

Where gates are not kept, time goes in pieces, and each piece through all layers before the next one begins: one buffer
of gates serves all, in both directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rl.recurrent_triton._layers import Gradients, Layer
from rl.recurrent_triton._sequence import pieces, rows_of, state_dtype

__all__ = ["Wanted", "run_backward", "run_forward"]

Steps = tuple[int, int]


@dataclass(frozen=True)
class Wanted:
    """Which gradients are needed.

    Args:
        inputs: that of the inputs.
        first: those of the states before the first step.
        resets: that of each reset state.
        weights: by layer, in the order of its weights.
    """

    inputs: bool
    first: tuple[bool, ...]
    resets: tuple[bool, ...]
    weights: list[list[bool]]

    @property
    def lowest(self) -> int:
        """The lowest layer that something is wanted of; as many as there are if nothing is."""
        if self.inputs or any(self.first) or any(self.resets):
            return 0
        return next((place for place, layer in enumerate(self.weights) if any(layer)), len(self.weights))


def run_forward(layers: Sequence[Layer], x: Tensor, gates: Tensor | None) -> None:
    """Compute the states of all layers.

    Args:
        layers: with the states to be written.
        x: ``[B, T, I]``, inputs of the lowest one.
        gates: ``[layers, B, T, 4 * H]``, to be kept; a work buffer is taken if None.
    """
    batch, time = x.shape[:2]
    cuts = pieces(batch, time, whole=gates is not None)
    work = _Work(x, layers[0], cuts, layers[0].slots)
    for steps in cuts:
        below = x
        for place, layer in enumerate(layers):
            buffer = work.gates(steps) if gates is None else gates[place]
            layer.project(rows_of(below, steps, layer.shared.dtype), buffer)
            layer.forward(buffer, steps, keep=gates is not None)
            below = layer.states[0]


class _Work:
    """Scratch buffer shared by the pieces of time."""

    def __init__(self, x: Tensor, layer: Layer, cuts: list[Steps], slots: int) -> None:
        self._like, self._dtype = x, layer.shared.dtype
        self._shape = x.shape[0], cuts[0][1] - cuts[0][0], slots * layer.hidden
        self._buffer: Tensor | None = None

    def gates(self, steps: Steps) -> Tensor:
        """Contiguous, for the gates of these steps."""
        batch, longest, columns = self._shape
        if self._buffer is None:
            self._buffer = self._like.new_empty(batch * longest * columns, dtype=self._dtype)
        length = steps[1] - steps[0]
        return self._buffer[: batch * length * columns].view(batch, length, columns)


@dataclass(frozen=True)
class _Results:
    """Gradients that are written piece by piece."""

    x: Tensor | None
    resets: tuple[Tensor | None, ...]  # [B, T, layers, H], in the type of the states


def run_backward(
    layers: Sequence[Layer], x: Tensor, grads: Sequence[Tensor | None], gates: Tensor | None, wanted: Wanted
) -> tuple[Tensor | None, tuple[Tensor | None, ...]]:
    """Gradients of inputs and of reset states, the needed ones; the layers hold the others.

    Args:
        layers: with their states.
        x: as in the forward pass.
        grads: of the states, ``[layers, B, T, H]`` each; None is zero.
        gates: as they were kept; computed again if None.
        wanted: which gradients.
    """
    batch, time = x.shape[:2]
    whole = (batch, time, len(layers), layers[0].hidden)
    kept = state_dtype(layers[0].shared.dtype)
    results = _Results(
        torch.empty_like(x, memory_format=torch.contiguous_format) if wanted.inputs else None,
        tuple(x.new_zeros(whole, dtype=kept) if want else None for want in wanted.resets),
    )
    for layer in layers:
        layer.begin_backward()
    cuts = pieces(batch, time, whole=gates is not None)
    work = _Work(x, layers[0], cuts, 4)
    for steps in reversed(cuts):
        above: Tensor | None = None
        for place in reversed(range(wanted.lowest, len(layers))):
            own = _own(grads, results, place, steps, above, carry=steps[0] > 0 or any(wanted.first))
            kept_gates = None if gates is None else gates[place]
            above = _layer_backward(layers, place, x, own, kept_gates, work, steps, wanted, results)
    return results.x, results.resets


def _write_product(left: Tensor, right: Tensor, out: Tensor) -> None:
    if out.is_contiguous() and out.dtype == left.dtype:
        torch.mm(left, right, out=out.view(len(left), -1))
    else:
        out.copy_(torch.mm(left, right).view_as(out))


def _own(
    grads: Sequence[Tensor | None],
    results: _Results,
    place: int,
    steps: Steps,
    above: Tensor | None,
    *,
    carry: bool,
) -> Gradients:
    """Gradients of the states of one layer: those that were given, and what the layer above adds to the first."""
    here = slice(*steps)
    of_states = [None if grad is None else _in_rows(grad[place, :, here]) for grad in grads]
    if above is not None:
        of_states[0] = above if of_states[0] is None else above.add_(of_states[0])
    of_resets = tuple(None if grad is None else grad[:, here, place] for grad in results.resets)
    return Gradients(tuple(of_states), carry, of_resets)


def _in_rows(grad: Tensor) -> Tensor:
    return grad if grad.stride(-1) == 1 else grad.contiguous()


def _layer_backward(
    layers: Sequence[Layer],
    place: int,
    x: Tensor,
    own: Gradients,
    gates: Tensor | None,
    work: _Work,
    steps: Steps,
    wanted: Wanted,
    results: _Results,
) -> Tensor | None:
    """Go through one layer; the gradient of the states of the layer below, if something is wanted of it."""
    layer, weights = layers[place], wanted.weights[place]
    needs_rows = weights[0] or gates is None
    below = layers[place - 1].states[0] if place else x
    rows = rows_of(below, steps, layer.shared.dtype) if needs_rows else x.new_empty(0)
    before = layer.states_before(steps) if weights[1] or gates is None else None
    grad = work.gates(steps)
    if gates is None and before is not None:
        layer.project(rows, grad)
        layer.add_states(before, grad)
        layer.backward(grad, grad, own, steps, activated=False)  # in place
    elif gates is not None:
        layer.backward(gates, grad, own, steps, activated=True)
    layer.add_weight_gradients(grad, rows, before, weights)
    if place > wanted.lowest:
        through = torch.mm(layer.of_input(grad), layer.weight_ih).view(*grad.shape[:2], -1)
        return through.to(layer.states[0].dtype)
    if results.x is not None:
        _write_product(layer.of_input(grad), layer.weight_ih, results.x[:, slice(*steps)])
    return None
